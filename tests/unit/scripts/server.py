"""A real HTTP server on loopback that answers each path from a table, for the scripts' unit tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answers = dict[str, list[tuple[int, str]]]
"""Per path what is answered, in turn; the last one is repeated."""


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left = answers.get(self.path, [(404, "")])
            status, text = left.pop(0) if len(left) > 1 else left[0]
            body = text.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            # Unread, it would have the kernel reset the connection before the answer is read.
            self.rfile.read(int(self.headers["content-length"] or 0))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
