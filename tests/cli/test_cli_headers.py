"""Each public header compiles when it is the only header that an application includes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli.cli_harness import environment_without_sanitizer, run_siwarp_command

import siwarp as package

HEADERS = Path(package.__file__).parent / "include" / "siwarp"
#: Functions of siw.h without a function of the same name in libibverbs, and their counterparts
#: there: most of these counterparts are members of a struct that is opaque in siw.h.
COUNTERPARTS = {
    "device_info": "get_device_name",
    "context_info": "context.device",
    "query_device_info": "query_port, query_gid",
    "num_comp_vectors": "context.num_comp_vectors",
    "async_fd": "context.async_fd",
    "cq_capacity": "cq.cqe",
    "comp_channel_fd": "comp_channel.fd",
    "qp_num": "qp.qp_num",
    "reg_mr_iova": "reg_mr_iova2, a macro there",
    "srq_num": "get_srq_num, an inline function there",
}
NAMESAKES = {
    *(
        "get_device_list",
        "free_device_list",
        "open_device",
        "close_device",
        "query_device",
    ),
    *("get_async_event", "ack_async_event", "event_type_str"),
    *("alloc_pd", "dealloc_pd", "reg_mr", "dereg_mr", "rereg_mr"),
    *("alloc_mw", "dealloc_mw", "bind_mw", "inc_rkey"),
    *("create_cq", "destroy_cq", "resize_cq", "poll_cq", "req_notify_cq", "wc_status_str"),
    *("create_comp_channel", "destroy_comp_channel", "get_cq_event", "ack_cq_events"),
    *("create_ah", "destroy_ah"),
    *("create_qp", "destroy_qp", "modify_qp", "query_qp", "attach_mcast", "detach_mcast"),
    *("post_send", "post_recv"),
    *("create_srq", "destroy_srq", "modify_srq", "query_srq", "post_srq_recv"),
}
#: A call to functions of each header, so that linking is tested, too.
CALLS = {
    "types.h": 'struct siw_addr a; return siw_addr_parse("::1", 1, &a);',
    "siw.h": "int n; siw_free_device_list(siw_get_device_list(&n)); return 0;",
    "siw_ext.h": "return siw_version()[0] == '\\0' || siw_query_drops(NULL, NULL, 0) == 0;",
    "cm.h": "return siw_cm_destroy_id(NULL) == 0;",
    # The program is not linked with libibverbs, whose functions are therefore not available.
    "ibv_ext.h": "return siw_ibv_qp != NULL;",
}


def find_declared_functions(header: str) -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", (HEADERS / header).read_text("utf-8"), flags=re.DOTALL)
    return set(re.findall(r"^[\w *]*?\bsiw_(\w+)\(", text, re.MULTILINE))


def test_every_public_header_is_tested() -> None:
    assert {path.name for path in HEADERS.glob("*.h")} == set(CALLS)


@pytest.mark.parametrize("language", ["cc -std=c11", "g++ -std=c++11"])
@pytest.mark.parametrize("header", CALLS)
def test_a_program_may_include_any_single_public_header(
    tmp_path: Path, header: str, language: str
) -> None:
    compiler = language.split()[0]
    assert shutil.which(compiler), f"this test needs {compiler}: apt install gcc g++"
    program = tmp_path / ("program.c" if compiler == "cc" else "program.cc")
    program.write_text(f"#include <siwarp/{header}>\nint main(void)\n{{\n\t{CALLS[header]}\n}}\n")
    flags = run_siwarp_command("config", "--cflags", "--libs").stdout.strip()
    command = f"{language} -pedantic -Wall -Wextra -Werror {program.name} -o program {flags}"
    built = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment_without_sanitizer(),
    )
    assert (built.returncode, built.stderr) == (0, "")
    subprocess.run(["./program"], cwd=tmp_path, check=True, timeout=60)


def test_siw_h_declares_the_functions_of_libibverbs_and_siw_ext_h_all_others() -> None:
    verbs = find_declared_functions("siw.h")
    assert len(verbs) > 40
    assert verbs - NAMESAKES - set(COUNTERPARTS) == set()
    assert (NAMESAKES | set(COUNTERPARTS)) - verbs == set()
    assert find_declared_functions("siw_ext.h") & (NAMESAKES | set(COUNTERPARTS)) == set()


@pytest.mark.parametrize("header", CALLS)
def test_lines_of_public_headers_have_at_most_100_columns(header: str) -> None:
    lines = (HEADERS / header).read_text("utf-8").splitlines()
    assert [line for line in lines if len(line.expandtabs(8)) > 100] == []
