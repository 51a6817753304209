"""Films on the page of a report, and the server that shows both: what it serves, and all that it refuses."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from fake_runs import fake_run
from processes import command, process_environment
from rl_training.cli import main
from rl_training.experiment.runs import METADATA, METRICS
from rl_training.zoo.page.films import Film, chosen, films_of
from rl_training.zoo.page.html_report import render_page
from rl_training.zoo.page.live_report import serve_report
from rl_training.zoo.page.server import PageServer
from rl_training.zoo.reporting import Filters, build_report

FILM = bytes(range(256)) * 40


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_films(run_dir: Path, *names: str) -> None:
    (run_dir / "videos").mkdir(exist_ok=True)
    for name in names:
        (run_dir / "videos" / name).write_bytes(FILM)


def addresses(text: str) -> list[str]:
    return re.findall(r'<video [^>]*src="([^"#]+)#t=0.1"', text)


def test_films_are_in_the_order_of_their_steps_and_nothing_else_is_one(tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path)
    assert films_of(run_dir) == []
    add_films(run_dir, "step_1000__seed3.mp4", "step_200__seed3.mp4", "step_200__Pong-v5__seed4.mp4", "notes.txt")
    (run_dir / "videos" / "step_9__seed1.mp4").symlink_to("/etc/passwd")
    (run_dir / "videos" / "step_8__seed1.mp4").mkdir()
    (run_dir / "videos" / "step_7__seed1.mp4").touch()
    assert [(film.step, film.task) for film in films_of(run_dir)] == [(200, None), (200, "Pong-v5"), (1000, None)]
    folder = run_dir / "videos"
    folder.rename(run_dir / "elsewhere")
    folder.symlink_to("elsewhere")
    assert films_of(run_dir) == []


def test_chosen_films_are_spread_over_training() -> None:
    films = [Film(step, 0, None, Path()) for step in range(11)]
    assert [film.step for film in chosen(films)] == [0, 3, 7, 10]
    assert chosen(films[:3]) == films[:3]


def test_the_page_shows_films_by_relative_links_with_what_they_show(tmp_path: Path) -> None:
    for seed in (1, 2):
        run_dir = fake_run(tmp_path / "runs & more", seed, created=seed)
        add_films(run_dir, *(f"step_{step}__seed{seed}.mp4" for step in (500, 1000, 1000)), "step_500__seed9.mp4")
    fake_run(tmp_path / "runs & more", 3)
    text = render_page(build_report([tmp_path]), "report", tmp_path)
    found = addresses(text)
    assert [unquote(link).rpartition("/")[2] for link in found] == ["step_500__seed2.mp4", "step_1000__seed2.mp4"]
    assert all((tmp_path / unquote(link)).read_bytes() == FILM for link in found)
    assert "ppo-cartpole, seed 2, after 1,000 steps" in text
    assert "media-src 'self' file:" in text
    assert "refresh" not in text


def test_films_of_a_suite_are_on_the_boards_of_their_tasks(tmp_path: Path) -> None:
    tasks = [{"env_id": "CartPole-v1"}, {"env_id": "ALE/Pong-v5"}]
    run_dir = fake_run(
        tmp_path, preset="scalezero-pair", changes={"env_id": "pair", "env_kwargs.tasks": tasks}, score=None
    )
    add_films(run_dir, "step_10__CartPole-v1__seed1.mp4", "step_10__ALE-Pong-v5__seed1.mp4")
    sections = render_page(build_report([tmp_path]), "report", tmp_path).split("<section")
    shown = {section.partition("<h2>")[2].partition("<")[0].strip(): addresses(section) for section in sections[1:]}
    assert [len(found) for found in shown.values() if found] == [1, 1]
    assert "ALE-Pong-v5" in shown["pair/ALE/Pong-v5"][0]


# -- the server ------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    add_films(fake_run(tmp_path / "runs", 1), "step_500__seed1.mp4")
    fake_run(tmp_path / "runs", 2, status="running")
    (tmp_path / "secret.txt").write_text("secret")
    with serve_report([tmp_path / "runs"], Filters(), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))  # seconds until it sees that it shall end
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: PageServer, path: str = "/", *, method: str = "GET", host: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"localhost:{server.server_port}")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def test_the_page_is_served_and_follows_the_runs(server: PageServer, tmp_path: Path) -> None:
    status, headers, content = ask(server)
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    text = content.decode()
    assert '<meta http-equiv="refresh" content="10">' in text
    assert "Runs: 1 completed, 1 running." in text
    assert ask(server)[2] == content
    add_films(fake_run(tmp_path / "runs", 3), "step_9__seed1.mp4")
    assert "Runs: 2 completed, 1 running." in ask(server)[2].decode()


def test_a_run_that_has_no_row_yet_is_followed(tmp_path: Path) -> None:
    (fake_run(tmp_path, 1, status="running") / METRICS).write_text("")
    with serve_report([tmp_path], Filters(), 0) as server:
        assert 'http-equiv="refresh"' in server.live.page(still=False)
    for path in tmp_path.iterdir():
        (path / METADATA).write_text("{}")
    with serve_report([tmp_path], Filters(), 0) as server:
        assert 'http-equiv="refresh"' not in server.live.page(still=False)


def test_the_page_can_be_held_still(server: PageServer) -> None:
    moving = ask(server)[2].decode()
    assert '<a href="/?still">Hold it still</a>' in moving
    still = ask(server, "/?still")[2].decode()
    assert 'http-equiv="refresh"' not in still
    assert '<a href="/">Follow the runs</a>' in still


def test_films_are_served_whole_and_in_parts(server: PageServer) -> None:
    (address,) = addresses(ask(server)[2].decode())
    status, headers, content = ask(server, address)
    assert (status, content, headers["content-type"]) == (200, FILM, "video/mp4")
    for asked, part in (("bytes=0-99", FILM[:100]), ("bytes=10000-", FILM[10000:]), ("bytes=-5", FILM[-5:])):
        status, headers, content = ask(server, address, Range=asked)
        assert (status, content) == (206, part)
        assert headers["content-range"].endswith(f"/{len(FILM)}")
    assert ask(server, address, Range="bytes=99999-")[0] == 416
    assert ask(server, address, Range="bytes=5-2")[::2] == (200, FILM)
    status, headers, content = ask(server, address, method="HEAD")
    assert (status, headers["content-length"], content) == (200, str(len(FILM)), b"")


def test_nothing_else_is_served(server: PageServer) -> None:
    ask(server)
    for path in (
        "/runs",
        "/runs/",
        "/films/",
        "/films/../secret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "//etc/passwd",
        "/films/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/metadata.json",
        "/films/" + "0" * 32 + ".mp4",
    ):
        status, _, content = ask(server, path)
        assert (status, content) == (404, b"there is only the page, and the films on it"), path


def test_a_film_that_became_a_link_is_not_followed(server: PageServer, tmp_path: Path) -> None:
    (address,) = addresses(ask(server)[2].decode())
    (film,) = (tmp_path / "runs").glob("*/videos/*.mp4")
    film.unlink()
    film.symlink_to(tmp_path / "secret.txt")
    assert ask(server, address)[0] == 404


def test_other_hosts_are_refused(server: PageServer) -> None:
    port = server.server_port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost",
        f"localhost:{port + 1}",
        f"127.0.0.1:{port}.evil",
    ):
        status, _, content = ask(server, host=host)
        assert status == 403, host
        assert b"Runs" not in content
    assert ask(server, host=f"127.0.0.1:{port}")[0] == 200


def test_answers_forbid_other_sites_to_use_them_and_other_methods_are_refused(server: PageServer) -> None:
    _, headers, _ = ask(server)
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["server"] == "axiomrl"
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, method=method)[0] == 501


def test_only_this_machine_reaches_the_server(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_report_that_cannot_be_built_any_more_is_said_in_a_sentence(server: PageServer, tmp_path: Path) -> None:
    (tmp_path / "runs").rename(tmp_path / "moved")
    status, _, content = ask(server)
    assert status == 500
    assert b"no such directory" in content


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "80"], "--port is where --serve listens; add --serve"),
        (["--serve", "--output", "x.html"], "--serve shows the HTML page and writes no file"),
        (["--serve", "--runs", "nowhere"], "nowhere: no such directory"),
        (["--serve", "--port", "99999"], "--port 99999: cannot be listened at"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], sentence: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(work / "runs")
    assert main(["report", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert sentence in said


def test_a_port_that_is_taken_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["report", str(tmp_path), "--serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_ctrl_c_ends_the_server_quietly(tmp_path: Path) -> None:
    fake_run(tmp_path)
    process = subprocess.Popen(
        command("report", tmp_path, "--serve", "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(),
    )
    assert process.stdout is not None
    assert re.fullmatch(r"address=http://127\.0\.0\.1:\d+/\n", process.stdout.readline())
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "Ctrl-C ends it\n")
    assert (next(tmp_path.iterdir()) / METRICS).exists()
