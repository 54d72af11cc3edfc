"""A server that may open no more files does not use up a core."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.waiting import HANGS_S

PROGRAM = """
import asyncio, errno, json, os, resource, socket, time
from concurrent.futures import ThreadPoolExecutor

import threadcast.service.http_server
from threadcast.service.http_server import Bounds, HttpServer
from threadcast.service.listener import REST_S, Listener

CLIENTS, FITTING, WATCHED = 12, 3, 5
failed = []


class Counting(Listener):
    def accept(self):
        try:
            return super().accept()
        except BlockingIOError as error:
            if error.errno == errno.EMFILE:
                failed.append(error)
            raise


threadcast.service.http_server.Listener = Counting


def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


async def answered(client):
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    return (await asyncio.wait_for(loop.sock_recv(client, 1000), 30)).startswith(b"HTTP/1.1 200 OK")


async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    clients = [socket.create_connection(address) for _ in range(CLIENTS)]
    for one in (listening, *clients):
        one.setblocking(False)
    with ThreadPoolExecutor(1) as threads:
        server = HttpServer(
            app, threads, Bounds(), address=address, most_sending=1, refused=lambda method, status: None
        )
        highest = max(map(int, os.listdir("/proc/self/fd")))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + FITTING, hard))
        server.add_socket(listening)
        began_s = time.monotonic()
        while len(failed) < WATCHED:
            await asyncio.sleep(REST_S / 10)
        rests = (time.monotonic() - began_s) / REST_S
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        answers = [await answered(client) for client in clients]
        await server.drain(1.0)
    print(json.dumps({"rests": rests, "failed": len(failed), "answers": answers}))


asyncio.run(main())
"""


def test_a_server_without_a_free_file_rests_says_so_once_and_then_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["failed"] <= told["rests"] + 2, "between two attempts it rests"
    assert told["answers"] == [True] * 12
    assert done.stderr.count("no connection can be accepted for now: Too many open files") == 1
