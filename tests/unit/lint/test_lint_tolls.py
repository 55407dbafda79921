"""The lint check for pass-through functions, which must find disguised pass-through functions."""

from __future__ import annotations

from table import run_test_for_each_row
from tolls import Function, find_forwarding_functions, parse_functions

LOW_LAYER = """
int siw_low_do(struct siw_low *low, int what)
{
	low->done++;
	return what;
}

int siw_low_undo(struct siw_low *low)
{
	low->done--;
	return 0;
}

struct siw_err siw_low_error(struct siw_low *low)
{
	return low->err;
}

void siw_low_wait(struct siw_low *low, int (*ready)(void *arg))
{
	while (!ready(low))
		low->turns++;
}
"""
BASE_LAYER = """
void siw_lock(siw_lock_t *lock)
{
	lock->held = 1;
}
"""

PASS_THROUGH_FUNCTIONS = {
    "as it is": """
int siw_up_do(struct siw_up *up, int what)
{
	return siw_low_do(up->low, what);
}
""",
    "a void function": """
void siw_up_do(struct siw_up *up)
{
	siw_low_do(up->low, 0);
}
""",
    "a cast": """
int siw_up_do(struct siw_up *up, int what)
{
	return siw_low_do((struct siw_low *)up, what);
}
""",
    "a cast by a helper": """
static struct siw_low *below(struct siw_up *up)
{
	return (struct siw_low *)up;
}

int siw_up_do(struct siw_up *up, int what)
{
	return siw_low_do(below(up), what);
}
""",
    "a struct copied": """
int siw_up_do(struct siw_up *up, const struct siw_up_attr *attr)
{
	struct siw_low_attr below = {
		.size = attr->size,
		.fd = attr->fd,
	};

	below.more = attr->more;
	return siw_low_do(up->low, &below);
}
""",
    "a struct copied by a helper": """
static struct siw_low_attr as_low(const struct siw_up_attr *attr)
{
	return (struct siw_low_attr){
		.size = attr->size,
		.base = attr->zero ? 0 : attr->base,
	};
}

int siw_up_do(struct siw_up *up, const struct siw_up_attr *attr)
{
	struct siw_low_attr below = as_low(attr);

	return siw_low_do(up->low, &below);
}
""",
    "a result converted": """
int siw_up_do(struct siw_up *up, int what)
{
	int r = siw_low_do(up->low, what);

	if (r < 0)
		return -EPIPE;
	return r ? 1 : 0;
}
""",
    "an assertion": """
int siw_up_do(struct siw_up *up, int what)
{
	assert(up && what >= 0);
	return siw_low_do(up->low, what);
}
""",
    "an unused argument": """
void siw_up_do(struct siw_up *up, int what)
{
	(void)what;
	siw_low_do(up->low, 0);
}
""",
    "an error by value": """
struct siw_err siw_up_do(struct siw_up *up)
{
	return siw_low_error(up->low);
}
""",
    "inline": """
static inline int siw_up_do(struct siw_up *up)
{
	return siw_low_do(up->low, 1); /* the one */
}
""",
}

WORKING_FUNCTIONS = {
    "a member of a table": """
static int up_do(struct siw_up *up)
{
	return siw_low_do(up->low, 1);
}

const struct siw_up_ops siw_up_ops = {
	.run = up_do,
};
""",
    "own state decides": """
int siw_up_do(struct siw_up *up)
{
	if (up->over)
		return -EPIPE;
	return siw_low_do(up->low, 1);
}
""",
    "own state is written": """
int siw_up_do(struct siw_up *up)
{
	up->begun++;
	return siw_low_do(up->low, 1);
}
""",
    "own state is in the result": """
int siw_up_do(struct siw_up *up)
{
	return siw_low_do(up->low, 1) + up->due;
}
""",
    "two calls": """
int siw_up_do(struct siw_up *up)
{
	siw_low_undo(up->low);
	return siw_low_do(up->low, 1);
}
""",
    "a loop": """
void siw_up_do(struct siw_up *up, int n)
{
	for (int i = 0; i < n; i++)
		siw_low_do(up->low, i);
}
""",
    "a lock": """
int siw_up_do(struct siw_up *up)
{
	int r;

	siw_lock(&up->lock);
	r = siw_low_do(up->low, 1);
	siw_unlock(&up->lock);
	return r;
}
""",
    "what is below calls back": """
static int has_come(void *arg)
{
	return ((struct siw_up *)arg)->come;
}

void siw_up_do(struct siw_up *up)
{
	siw_low_wait(up->low, has_come);
}
""",
    "a branch to one of two": """
int siw_up_do(struct siw_up *up)
{
	if (up->other)
		return siw_low_undo(up->other);
	return siw_low_do(up->low, 1);
}
""",
}


def forwarding_functions_in(text: str) -> list[str]:
    everything: list[Function] = [
        *parse_functions("base", "base.c", BASE_LAYER),
        *parse_functions("low", "low.c", LOW_LAYER),
        *parse_functions("up", "up.c", text),
    ]
    return find_forwarding_functions(everything)


@run_test_for_each_row("text", PASS_THROUGH_FUNCTIONS.values(), ids=PASS_THROUGH_FUNCTIONS.keys())
def test_disguised_pass_through_functions_are_found(text: str) -> None:
    assert forwarding_functions_in(text) == ["siw_up_do"]


@run_test_for_each_row("text", WORKING_FUNCTIONS.values(), ids=WORKING_FUNCTIONS.keys())
def test_functions_that_do_work_are_accepted(text: str) -> None:
    assert forwarding_functions_in(text) == []


def test_a_pass_through_to_a_function_of_the_same_folder_is_accepted() -> None:
    text = PASS_THROUGH_FUNCTIONS["a cast"].replace("siw_low_do", "siw_up_more")
    assert forwarding_functions_in(text) == []
