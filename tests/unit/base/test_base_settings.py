"""The table of settings: defaults, environment variables, calls, and messages about errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from _siwarp_layers import ffi, lib

import siwarp

Child = Callable[..., CompletedProcess[str]]

ENOENT, EINVAL, ERANGE = 2, 22, 34

#: The documented default, minimum and maximum of each setting.
DOCUMENTED_SETTINGS = {
    "progress_thread": (1, 0, 1),
    "lanes": (0, 0, 16),
    "nap_us": (1000, 50, 100000),
    "spin_us": (30, 0, 10000),
    "budget": (64, 1, 4096),
    "hot_sockets": (4, 1, 16),
    "rcvbuf": (8 << 20, 4096, 1 << 30),
    "sndbuf": (8 << 20, 4096, 1 << 30),
    "mcast_port": (62607, 1, 65535),
    "mcast_ttl": (1, 0, 255),
    "mulpdu": (64768, 128, 64768),
    "crc_first": (0, 0, 1),
    "mpa_timeout_ms": (5000, 10, 600000),
    "sidr_timeout_ms": (10000, 100, 600000),
    "max_startups": (1024, 1, 65535),
    "max_requests": (1024, 1, 65535),
    "source_share": (0, 0, 100),
    "rc_port_first": (0, 0, 65535),
    "rc_port_last": (65535, 1, 65535),
    "linger_ms": (2000, 0, 600000),
    "persona": (0, 0, 2),
    "error_policy": (0, 0, 2),
    "qkey": (0, 0, 0x7FFFFFFF),
    "err_queue": (32, 2, 65536),
    "err_window": (256, 1, 65536),
    "err_rate": (1000, 0, 1_000_000),
    "err_source_rate": (20, 0, 1_000_000),
    "rnr_octets": (1 << 20, 128 << 10, 1 << 30),
    "peer_timeout_ms": (10000, 100, 600000),
    "rd_handshake_timeout_ms": (60000, 100, 600000),
    "rd_peers": (65536, 1, 1 << 24),
    "rd_window": (4 << 20, 65536, 65535 << 10),
    "rd_total_window": (64 << 20, 1 << 20, 1 << 40),
    "rd_idle_ms": (30000, 10, 86400000),
    "rd_max_datagram": (0, 0, 65507),
    "rd_follow_restart": (0, 0, 1),
    "rd_cc": (0, 0, 2),
    "batching": (0, 0, 2),
    "uc_breaker": (1, 0, 2),
    "record_reorder_us": (2000, 0, 1_000_000),
    "record_timeout_ms": (100, 1, 60_000),
    "crc": (1, 0, 1),
    "markers": (0, 0, 1),
    "delivery_counts": (1, 0, 1),
    "mpa_announce": (1, 0, 1),
    "capture_mb": (0, 0, 1 << 20),
    "log": (0, 0, 4),
}
NAMES = [ffi.string(lib.siw_setting_name(i)).decode() for i in range(lib.siw_settings_count())]

PRINT_VALUES = """
import json
print(json.dumps({ffi.string(lib.siw_setting_name(i)).decode(): lib.siw_setting_value(i)
                  for i in range(lib.siw_settings_count())}))
"""


def parse_printed_values(done: CompletedProcess[str]) -> dict[str, int]:
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_settings_table_has_each_setting_with_its_documented_default_and_bounds() -> None:
    table = {
        name: (lib.siw_setting_default(i), lib.siw_setting_min(i), lib.siw_setting_max(i))
        for i, name in enumerate(NAMES)
    }
    assert table == DOCUMENTED_SETTINGS


def test_the_variable_and_the_option_of_a_setting_are_derived_from_its_name() -> None:
    for i, name in enumerate(NAMES):
        assert ffi.string(lib.siw_setting_env(i)).decode() == f"SIWARP_{name.upper()}"
        assert ffi.string(lib.siw_setting_option(i)).decode() == "--" + name.replace("_", "-")
        help_line = ffi.string(lib.siw_setting_help(i)).decode()
        assert len(help_line) > 10 and "\n" not in help_line


def test_the_default_of_every_setting_lies_within_its_bounds() -> None:
    for i in range(lib.siw_settings_count()):
        low, high = lib.siw_setting_min(i), lib.siw_setting_max(i)
        assert low <= lib.siw_setting_default(i) <= high


@pytest.mark.parametrize("i", [-1, len(NAMES), 1 << 30])
def test_an_index_outside_of_the_settings_table_has_no_setting(i: int) -> None:
    for text in (
        lib.siw_setting_name,
        lib.siw_setting_env,
        lib.siw_setting_option,
        lib.siw_setting_help,
    ):
        assert text(i) == ffi.NULL
    for number in (
        lib.siw_setting_default,
        lib.siw_setting_min,
        lib.siw_setting_max,
        lib.siw_setting_value,
    ):
        assert number(i) == -1


def test_without_environment_variables_all_settings_have_their_defaults(
    run_in_child: Child,
) -> None:
    done = run_in_child(PRINT_VALUES)
    assert parse_printed_values(done) == {name: row[0] for name, row in DOCUMENTED_SETTINGS.items()}
    assert done.stderr == ""


def test_each_environment_variable_sets_its_setting_to_either_bound(run_in_child: Child) -> None:
    for column in (1, 2):
        wanted = {name: row[column] for name, row in DOCUMENTED_SETTINGS.items()}
        done = run_in_child(
            PRINT_VALUES, **{f"SIWARP_{n.upper()}": str(v) for n, v in wanted.items()}
        )
        assert parse_printed_values(done) == wanted
        assert done.stderr == ""


@pytest.mark.parametrize(
    "text", ["0", "-1", "4097", "", " 8", "8 ", "+8", "0x8", "8k", "eight", "9" * 30, "-", "8\n9"]
)
def test_an_invalid_value_of_a_variable_causes_one_message_and_keeps_the_default(
    run_in_child: Child, text: str
) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_BUDGET=text)
    assert parse_printed_values(done)["budget"] == 64
    head = f"siwarp: SIWARP_BUDGET={text} is not a number from 1 to 4096; using 64\n"
    assert done.stderr == head


@pytest.mark.parametrize(("text", "value"), [("auto", 0), ("iwarp", 1), ("roce", 2), ("2", 2)])
def test_the_persona_setting_accepts_a_name_or_a_number(
    run_in_child: Child, text: str, value: int
) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_PERSONA=text)
    assert (parse_printed_values(done)["persona"], done.stderr) == (value, "")


@pytest.mark.parametrize(("text", "value"), [("auto", 0), ("error", 1), ("message", 2), ("1", 1)])
def test_the_error_policy_setting_accepts_a_name_or_a_number(
    run_in_child: Child, text: str, value: int
) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_ERROR_POLICY=text)
    assert (parse_printed_values(done)["error_policy"], done.stderr) == (value, "")
    assert run_in_child(PRINT_VALUES, SIWARP_ERROR_POLICY="none").stderr == (
        "siwarp: SIWARP_ERROR_POLICY=none is not auto, error or message; ignored\n"
    )


@pytest.mark.parametrize("text", ["Roce", "rocev2", "3", "ib"])
def test_an_unknown_persona_causes_one_message_and_keeps_the_default(
    run_in_child: Child, text: str
) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_PERSONA=text)
    assert parse_printed_values(done)["persona"] == 0
    assert done.stderr == f"siwarp: SIWARP_PERSONA={text} is not auto, iwarp or roce; ignored\n"


def test_an_unknown_siwarp_variable_causes_one_message_and_has_no_effect(
    run_in_child: Child,
) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_BUDGETS="7", SIWARP_="1", SIWARPED="1")
    assert sorted(done.stderr.splitlines()) == [
        "siwarp: there is no setting SIWARP_; ignored",
        "siwarp: there is no setting SIWARP_BUDGETS; ignored",
    ]
    assert parse_printed_values(done) == {name: row[0] for name, row in DOCUMENTED_SETTINGS.items()}


def test_a_former_siwarp_variable_causes_one_message_that_names_its_successor(
    run_in_child: Child,
) -> None:
    done = run_in_child(
        PRINT_VALUES, SIWARP_COMPANY="never", SIWARP_LINGER_OCTETS="1", SIWARP_STRICT="1"
    )
    assert sorted(done.stderr.splitlines()) == [
        "siwarp: SIWARP_COMPANY is ignored: use SIWARP_BATCHING",
        "siwarp: SIWARP_LINGER_OCTETS is ignored: remove it, the limit is 256 MiB",
        "siwarp: SIWARP_STRICT is ignored: use SIWARP_CRC_FIRST",
    ]
    assert parse_printed_values(done) == {name: row[0] for name, row in DOCUMENTED_SETTINGS.items()}


def test_the_advice_for_a_former_setting_names_existing_settings() -> None:
    header = Path(siwarp.__file__).parent / "base" / "settings.c"
    former = re.findall(r'\{ "(SIWARP_\w+)", "([^"]+)" \}', header.read_text("utf-8"))
    variables = {f"SIWARP_{name.upper()}" for name in NAMES}
    assert former
    for variable, advice in former:
        assert variable not in variables
        assert (
            ffi.string(lib.siw_settings_advice_for_former_name(variable.encode())).decode()
            == advice
        )
        assert set(re.findall(r"SIWARP_\w+", advice)) <= variables
    assert (
        lib.siw_settings_advice_for_former_name(b"SIWARP_CRC")
        == lib.siw_settings_advice_for_former_name(ffi.NULL)
        == ffi.NULL
    )


def test_the_message_about_a_very_long_value_is_one_line(run_in_child: Child) -> None:
    done = run_in_child(PRINT_VALUES, SIWARP_NAP_US="1" * 5000)
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("siwarp: SIWARP_NAP_US=1111")
    assert done.stderr.endswith("\n")


def test_the_environment_is_read_once_even_if_many_threads_read_settings_first(
    run_in_child: Child,
) -> None:
    # The stacks are small, because glibc frees stacks beyond 40 MiB in total at the end of a
    # thread, under a lock that ThreadSanitizer does not see.
    code = """
import threading
threading.stack_size(1 << 20)
go = threading.Barrier(8)
seen = []
def read_setting():
    go.wait()
    seen.append(lib.siw_setting_value(4))
threads = [threading.Thread(target=read_setting) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(seen)
"""
    done = run_in_child(code, SIWARP_BUDGET="17", SIWARP_NONSENSE="1")
    assert done.stdout.strip() == str([17] * 8)
    assert done.stderr == "siwarp: there is no setting SIWARP_NONSENSE; ignored\n"


def test_a_setting_set_by_a_call_overrides_the_environment_even_if_set_first(
    run_in_child: Child,
) -> None:
    done = run_in_child(
        "assert lib.siw_setting_set(b'budget', 5) == 0" + PRINT_VALUES, SIWARP_BUDGET="17"
    )
    assert parse_printed_values(done)["budget"] == 5


def test_setting_a_value_out_of_bounds_or_an_unknown_setting_is_refused(
    run_in_child: Child,
) -> None:
    code = """
print([lib.siw_setting_set(b'budget', 0), lib.siw_setting_set(b'budget', 4097),
       lib.siw_setting_set(b'budgets', 1), lib.siw_setting_set(b'', 1),
       lib.siw_setting_set_text(b'budget', b'many'), lib.siw_setting_set_text(b'budget', b'5000'),
       lib.siw_setting_set_text(b'nowhere', b'1'), lib.siw_setting_set_text(b'budget', b'4096')])
"""
    done = run_in_child(code + PRINT_VALUES)
    answers = [-ERANGE, -ERANGE, -ENOENT, -ENOENT, -EINVAL, -ERANGE, -ENOENT, 0]
    assert done.stdout.splitlines()[0] == str(answers)
    assert parse_printed_values(done) == {
        **{n: r[0] for n, r in DOCUMENTED_SETTINGS.items()},
        "budget": 4096,
    }
    assert done.stderr == ""


PRINT_LEVELS = """
layers = ('base', 'llp', 'mpa', 'ddp', 'rdmap', 'verbs', 'cm')
print([lib.siw_trace_level_of_layer(x.encode()) for x in layers])
"""


@pytest.mark.parametrize(
    ("text", "value", "levels"),
    [
        ("0", 0, [0, 0, 0, 0, 0, 0, 0]),
        ("4", 4, [4, 4, 4, 4, 4, 4, 4]),
        ("warn", 2, [2, 2, 2, 2, 2, 2, 2]),
        ("off", 0, [0, 0, 0, 0, 0, 0, 0]),
        ("error,mpa=debug", 1, [1, 1, 4, 1, 1, 1, 1]),
        ("mpa=debug,cm=info", 0, [0, 0, 4, 0, 0, 0, 3]),
        ("verbs=0,info", 3, [3, 3, 3, 3, 3, 0, 3]),
    ],
)
def test_siwarp_log_accepts_a_level_for_all_layers_and_levels_of_layers(
    run_in_child: Child, text: str, value: int, levels: list[int]
) -> None:
    done = run_in_child(PRINT_VALUES + PRINT_LEVELS, SIWARP_LOG=text)
    assert json.loads(done.stdout.splitlines()[0])["log"] == value
    assert json.loads(done.stdout.splitlines()[1]) == levels
    assert done.stderr == ""


@pytest.mark.parametrize("text", ["5", "", "loud", "mpa=", "=3", "tcp=3", "3,", "3 ", "mpa=3=3"])
def test_an_invalid_log_level_causes_one_message_and_disables_the_log(
    run_in_child: Child, text: str
) -> None:
    done = run_in_child(PRINT_VALUES + PRINT_LEVELS, SIWARP_LOG=text)
    assert json.loads(done.stdout.splitlines()[0])["log"] == 0
    assert json.loads(done.stdout.splitlines()[1]) == [0] * 7
    assert done.stderr == f"siwarp: SIWARP_LOG={text} is not level[,layer=level]...; ignored\n"


def test_setting_the_log_level_by_a_call_sets_the_level_of_every_layer(run_in_child: Child) -> None:
    done = run_in_child(
        "assert lib.siw_setting_set(b'log', 3) == 0" + PRINT_LEVELS, SIWARP_LOG="mpa=debug"
    )
    assert json.loads(done.stdout) == [3] * 7


LOG_LINE = re.compile(r"siwarp\[\d+\] \d+\.\d{6} (\w+) (\w+): (.*)")


def test_a_log_line_is_written_only_at_or_below_the_level_of_its_layer(run_in_child: Child) -> None:
    code = """
lib.siw_settings_count(); lib.siw_setting_value(0)
for layer in (b'llp', b'mpa'):
    for level in (1, 2, 3, 4):
        assert lib.siw_trace_log_text_for_tests(layer, level, b'word %d') == 0
assert lib.siw_trace_log_text_for_tests(b'tcp', 1, b'x') == -22
assert lib.siw_trace_log_text_for_tests(b'mpa', 0, b'x') == -22
assert lib.siw_trace_level_of_layer(b'tcp') == -22
"""
    done = run_in_child(code, SIWARP_LOG="error,mpa=info")
    lines = [LOG_LINE.fullmatch(line) for line in done.stderr.splitlines()]
    assert [m.groups() if m else None for m in lines] == [
        ("llp", "error", "word %d"),
        ("mpa", "error", "word %d"),
        ("mpa", "warn", "word %d"),
        ("mpa", "info", "word %d"),
    ]


def test_a_long_log_line_is_truncated_and_ends_with_a_newline(run_in_child: Child) -> None:
    code = (
        "lib.siw_trace_set_all_levels(4); lib.siw_trace_log_text_for_tests(b'cm', 4, b'y' * 2000)"
    )
    done = run_in_child(code)
    assert done.stderr.endswith("y\n")
    assert len(done.stderr) < 512 and done.stderr.count("\n") == 1


def test_no_log_line_is_written_by_default(run_in_child: Child) -> None:
    code = "lib.siw_setting_value(0); assert lib.siw_trace_log_text_for_tests(b'cm', 1, b'x') == 0"
    assert run_in_child(code).stderr == ""
