// Gloo's all-reduce over its ibverbs transport, with checked results; each rank is a process.
//
// gloo_allreduce DEVICE STORE RANKS RANK ROUNDS     STORE: a folder that all ranks share
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

namespace
{

// Integers whose sums a float represents exactly, so the order of addition does not matter.
float value(int rank, int round, size_t at)
{
	return static_cast<float>((rank + 1) * ((at + 3 * round) % 1000));
}

void fill(std::vector<float> &data, int rank, int round)
{
	for (size_t i = 0; i < data.size(); i++)
		data[i] = value(rank, round, i);
}

bool summed(const std::vector<float> &data, int ranks, int round)
{
	const int sum = ranks * (ranks + 1) / 2;
	for (size_t i = 0; i < data.size(); i++) {
		if (data[i] != value(sum - 1, round, i)) {
			std::fprintf(stderr, "element %zu of round %d is %g\n", i, round, data[i]);
			return false;
		}
	}
	return true;
}

// Gloo's buffers must not be destroyed before their last send has completed, but Gloo does not wait
// for that. The send of a barrier completes after all earlier sends of its pair.
struct Through : gloo::BarrierAllToAll {
	using BarrierAllToAll::BarrierAllToAll;
	void run()
	{
		BarrierAllToAll::run();
		for (auto &buffer : sendBuffers_)
			buffer->waitSend();
	}
};

// Returns whether all rounds of all-reduces of this many elements had correct results.
template <typename Algorithm>
bool reduced(const std::shared_ptr<gloo::Context> &context, size_t elements, int rounds)
{
	std::vector<float> data(elements);
	Algorithm algorithm(context, { data.data() }, elements);
	for (int round = 0; round < rounds; round++) {
		fill(data, context->rank, round);
		algorithm.run();
		if (!summed(data, context->size, round))
			return false;
	}
	Through(context).run();
	return true;
}

int run(char **words)
{
	gloo::transport::ibverbs::attr attr{ words[1], 1, 0 };
	gloo::rendezvous::FileStore store(words[2]);
	const int ranks = std::atoi(words[3]), rank = std::atoi(words[4]),
		  rounds = std::atoi(words[5]);
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
	context->setTimeout(std::chrono::seconds(10));
	context->connectFullMesh(store, device);
	for (size_t elements : { 16u, 10000u, 1u << 20 }) {
		if (!reduced<gloo::AllreduceRingChunked<float>>(context, elements, rounds))
			return 1;
		if (!reduced<gloo::AllreduceHalvingDoubling<float>>(context, elements, rounds))
			return 1;
	}
	std::printf("rank %d of %d: sums correct\n", rank, ranks);
	// Exit without destructors: Gloo's pairs would destroy their queue pairs while the device's
	// thread, which has just reported the last message, may still post to them and then deadlocks.
	std::fflush(stdout);
	std::_Exit(0);
}

} // namespace

int main(int argc, char **argv)
{
	try {
		return argc == 6 ? run(argv) : 2;
	} catch (const std::exception &error) {
		std::fprintf(stderr, "%s\n", error.what());
		return 3;
	}
}
