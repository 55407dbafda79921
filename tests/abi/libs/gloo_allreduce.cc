// Test of Gloo's all-reduce over its ibverbs transport, with checked results; each rank is a
// process.
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

// Returns an integer, so that a float represents sums exactly, in any order of addition.
float element_value(int rank, int round, size_t at)
{
	return static_cast<float>((rank + 1) * ((at + 3 * round) % 1000));
}

void fill_elements(std::vector<float> &data, int rank, int round)
{
	for (size_t i = 0; i < data.size(); i++)
		data[i] = element_value(rank, round, i);
}

bool are_sums_correct(const std::vector<float> &data, int ranks, int round)
{
	const int sum = ranks * (ranks + 1) / 2;
	for (size_t i = 0; i < data.size(); i++) {
		if (data[i] != element_value(sum - 1, round, i)) {
			std::fprintf(stderr, "element %zu of round %d is %g\n", i, round, data[i]);
			return false;
		}
	}
	return true;
}

// A barrier that waits for its own sends, which complete after all earlier sends of their pair.
// Gloo's buffers must not be destroyed before their last send has completed, but Gloo does not
// wait.
struct FlushingBarrier : gloo::BarrierAllToAll {
	using BarrierAllToAll::BarrierAllToAll;
	void run()
	{
		BarrierAllToAll::run();
		for (auto &buffer : sendBuffers_)
			buffer->waitSend();
	}
};

// Returns whether all rounds of all-reduces of the given number of elements had correct results.
template <typename Algorithm>
bool run_allreduce_rounds(const std::shared_ptr<gloo::Context> &context, size_t elements, int rounds)
{
	std::vector<float> data(elements);
	Algorithm algorithm(context, { data.data() }, elements);
	for (int round = 0; round < rounds; round++) {
		fill_elements(data, context->rank, round);
		algorithm.run();
		if (!are_sums_correct(data, context->size, round))
			return false;
	}
	FlushingBarrier(context).run();
	return true;
}

int run_rank(char **words)
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
		if (!run_allreduce_rounds<gloo::AllreduceRingChunked<float>>(context, elements, rounds))
			return 1;
		if (!run_allreduce_rounds<gloo::AllreduceHalvingDoubling<float>>(context, elements, rounds))
			return 1;
	}
	std::printf("rank %d of %d: sums correct\n", rank, ranks);
	// Exit without destructors, because Gloo's pairs would destroy their queue pairs while the
	// device's thread, which has just reported the last message, may still post to them and
	// then deadlock.
	std::fflush(stdout);
	std::_Exit(0);
}

} // namespace

int main(int argc, char **argv)
{
	try {
		return argc == 6 ? run_rank(argv) : 2;
	} catch (const std::exception &error) {
		std::fprintf(stderr, "%s\n", error.what());
		return 3;
	}
}
