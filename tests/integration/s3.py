"""A bucket on the real S3 server of the tests (tests/tools/s3-server), behind a TCP proxy that counts bytes and makes faults."""

import datetime
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REGION = "us-east-1"


def server_settings():
    """{S3_ENDPOINT, S3_ACCESS_KEY, S3_SECRET_KEY}; starts the server if it is not running. Tests of another user get them from the
    environment."""
    if "S3_ENDPOINT" in os.environ:
        return {name: os.environ[name] for name in ("S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY")}
    command = [str(ROOT / "tests" / "tools" / "s3-server"), "start"]
    if os.geteuid() != 0:
        command.insert(0, "sudo")
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return dict(re.findall(r"^(?:export )?(S3_\w+)=(\S+)$", out, re.MULTILINE))


def request(settings, method, path):
    """One signed request without a body; its answer's status."""
    host = urllib.parse.urlsplit(settings["S3_ENDPOINT"]).netloc
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{now}\n\n"
    canonical += f"host;x-amz-content-sha256;x-amz-date\n{empty}"
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + settings["S3_SECRET_KEY"]).encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request(method, path, headers={
        "x-amz-date": now, "x-amz-content-sha256": empty,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={settings['S3_ACCESS_KEY']}/{scope}, "
                         f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


class ProxyServer:
    """What the proxy's process runs."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.received = self.sent = self.requests = 0
        self.kill_at = None  # (number of the request before which it is passed on, pid)
        self.up = True
        self._pairs = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self.up:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = (client, server)
        with self._lock:
            self._pairs.add(pair)
        try:
            while self.up:
                ready, _, _ = select.select(pair, [], [], 0.5)
                for source in ready:
                    if not self._pass_on(source, pair):
                        return
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._pairs.discard(pair)
            for end in pair:
                end.close()

    def _pass_on(self, source, pair):
        client, server = pair
        data = source.recv(1 << 18)
        if not data:
            return False
        if source is server:
            client.sendall(data)
            with self._lock:
                self.received += len(data)
            return True
        if re.match(rb"(GET|PUT|POST|HEAD|DELETE) ", data):
            with self._lock:
                self.requests += 1
                kill_at = self.kill_at
                if kill_at and kill_at[0] == self.requests:
                    os.kill(kill_at[1], signal.SIGKILL)
                    return False
        server.sendall(data)
        with self._lock:
            self.sent += len(data)
        return True

    def cut(self):
        """The network is gone: connections are reset, new ones refused at once."""
        self.up = False
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def restore(self):
        self.up = True

    def reset_counts(self):
        with self._lock:
            self.received = self.sent = self.requests = 0

    def serve(self):
        """One line of JSON for each line on standard input, until it ends."""
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "cut":
                self.cut()
            elif command["do"] == "restore":
                self.restore()
            elif command["do"] == "reset":
                self.reset_counts()
            elif command["do"] == "kill":
                with self._lock:
                    self.kill_at = (self.requests + command["after"], command["pid"])
            with self._lock:
                facts = {"port": self.port, "received": self.received, "sent": self.sent, "requests": self.requests}
            print(json.dumps(facts), flush=True)


class Proxy:
    """127.0.0.1:port in front of the server. `received` and `sent` count the bytes that clients got and gave, `requests` what
    they asked. A process of its own: a test that waits for a page of a mount, with Python's lock held, must not stop it."""

    def __init__(self, host, port):
        self._process = subprocess.Popen([sys.executable, os.path.abspath(__file__), host, str(port)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self.port = self._ask("counts")["port"]

    def _ask(self, do, **more):
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    received = property(lambda self: self._ask("counts")["received"])
    sent = property(lambda self: self._ask("counts")["sent"])
    requests = property(lambda self: self._ask("counts")["requests"])

    def cut(self):
        """The network is gone: connections are reset, new ones are closed at once."""
        self._ask("cut")

    def restore(self):
        self._ask("restore")

    def reset_counts(self):
        self._ask("reset")

    def kill_at_request(self, after, pid):
        """Kills `pid` (-9) when it sends the request that is `after` from now; the request is not passed on."""
        self._ask("kill", after=after, pid=pid)

    def close(self):
        self._process.kill()
        self._process.communicate()


class Bucket:
    """A bucket of its own. `url` and `env` are what weightfs needs."""

    def __init__(self):
        settings = server_settings()
        self.name = "t" + os.urandom(8).hex()
        status = request(settings, "PUT", "/" + self.name)
        if status not in (200, 204):
            raise AssertionError(f"the S3 server answers {status} to the making of a bucket")
        at = urllib.parse.urlsplit(settings["S3_ENDPOINT"])
        self.proxy = Proxy(at.hostname, at.port)
        self.url = f"s3://{self.name}/prefix"
        self.env = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}", "AWS_ACCESS_KEY_ID": settings["S3_ACCESS_KEY"],
                    "AWS_SECRET_ACCESS_KEY": settings["S3_SECRET_KEY"], "AWS_REGION": REGION}

    def close(self):
        self.proxy.close()


if __name__ == "__main__":
    ProxyServer(sys.argv[1], int(sys.argv[2])).serve()
