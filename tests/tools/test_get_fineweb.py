"""Fetching token files from a server of this machine that cuts connections and sends wrong files. Standard library
only."""

import email.utils
import fcntl
import hashlib
import http.server
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))
import deadline  # noqa: E402
import small_run  # noqa: E402

TOOL = ROOT / "jobscripts" / "tools" / "get_fineweb.py"
REPOSITORY = "/datasets/kjj0/fineweb10B-gpt2/resolve/main/"
VALIDATION, FIRST = "fineweb_val_000000", "fineweb_train_000001"


def bin_file(tokens, seed, magic=20240520):
    """A .bin file of random tokens."""
    body = random.Random(seed).choices(range(50257), k=tokens)
    return struct.pack("<256i", magic, 1, tokens, *[0] * 253) + struct.pack(f"<{tokens}H", *body)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` by name. `cuts`: bytes after which the next answers end early; `ranges`: whether it can send the
    rest of a file; `digests`: SHA-256 by name, told in a redirection as Hugging Face does; `codes`: errors by name."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.cuts, self.ranges, self.digests, self.codes, self.asked = {}, [], True, {}, {}, []
        self.shift = 0  # by which parts begin elsewhere than asked for
        self.lies = {}  # headers that replace the right ones
        self.retry_after = None  # what errors ask for
        self.elsewhere = None  # start of addresses to which all files have moved
        self.tokens = []  # headers Authorization, by request


class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, name = self.server, self.path.rsplit("/", 1)[1]
        server.tokens.append(self.headers.get("Authorization"))
        if server.elsewhere:
            self.send_response(302)
            self.send_header("Location", f"{server.elsewhere}/moved/{name}")
            self.end_headers()
            return
        if name in server.digests and not self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"/moved/{name}")
            self.send_header("X-Linked-Etag", f'"{server.digests[name]}"')
            self.end_headers()
            return
        server.asked.append((name, self.headers.get("Range")))
        codes = server.codes.get(name, [])
        if codes or name not in server.files:
            self.send_response(codes.pop() if codes else 404)
            self.send_header("Content-Length", "0")
            if server.retry_after:
                self.send_header("Retry-After", server.retry_after)
            self.end_headers()
            return
        self.send(server.files[name])

    def send(self, data):
        wanted = self.headers.get("Range")
        first = int(wanted[len("bytes="):-1]) if wanted and self.server.ranges else 0
        if first and first >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        first = max(first - self.server.shift, 0)
        headers = {"Content-Length": len(data) - first, "Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        for name, value in (headers | self.server.lies).items():
            self.send_header(name, str(value))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(data)
        self.wfile.write(data[first:first + cut])


def address_of(server):
    return f"http://127.0.0.1:{server.server_address[1]}"


class GetFineweb(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-fineweb-")
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.data = self.directory / "data"
        self.server = self.start_server()
        for seed, name in enumerate((VALIDATION, FIRST)):
            self.server.files[f"{name}.bin"] = bin_file(40000, seed)

    def start_server(self):
        server = Server()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def get(self, *arguments, code=0, modules=None, address=None, table=b"", **variables):
        """Runs the tool; `modules` is a directory of further Python modules, `table` what it takes for GPT-2's. It says
        how long it waits, and does not."""
        address = address or address_of(self.server)
        environment = {**os.environ, "HF_ENDPOINT": address, "no_proxy": "127.0.0.1", "PYTHONPATH": str(modules or ""),
                       "HF_TOKEN": "", **variables}
        start = f"import runpy, sys; sys.argv[1:] = {list(map(str, arguments))}; "
        # Without `modules` there is no huggingface_hub.
        block = "" if modules else "sys.modules['huggingface_hub'] = None; "
        patch = (f"sys.path.insert(0, {str(TOOL.parent)!r}); import get_fineweb, time; "
                 "time.sleep = lambda seconds: print(f'waits {seconds:g} s', file=sys.stderr); "
                 f"get_fineweb.TABLE_DIGEST = {hashlib.sha256(table).hexdigest()!r}; "
                 "import tool; sys.argv[0] = 'get_fineweb.py'; tool.run(get_fineweb.main)")
        done = deadline.run([sys.executable, "-B", "-c", start + block + patch], cwd=self.directory, env=environment,
                            text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def get_one(self, *arguments, **options):
        return self.get("--shards", 1, "--program", small_run.PROGRAM, *arguments, **options)

    def assert_whole(self):
        for name in (VALIDATION, FIRST):
            self.assertEqual((self.data / f"{name}.bin").read_bytes(), self.server.files[f"{name}.bin"])

    def assert_refused(self, done, *parts):
        lines = done.stderr.splitlines()
        for part in parts:
            self.assertIn(part, lines[-1])
        self.assertFalse((self.data / f"{FIRST}.bin").exists())

    def test_files_become_shards_that_give_the_files_back(self):
        done = self.get_one()
        self.assertEqual(len(done.stdout.splitlines()), 2)
        self.assertEqual(sorted(path.name for path in self.data.iterdir()),
                         sorted(f"{name}.{kind}" for name in (VALIDATION, FIRST) for kind in ("bin", "h5")))
        for name in (VALIDATION, FIRST):
            deadline.run([small_run.PROGRAM, "export", str(self.data / f"{name}.h5"), f"{name}.bin"],
                         cwd=self.directory, check=True, timeout=60)
            self.assertEqual((self.directory / f"{name}.bin").read_bytes(), self.server.files[f"{name}.bin"])
        self.server.asked.clear()
        self.get_one()  # all is there
        self.assertEqual(self.server.asked, [])

    def test_connections_that_are_cut(self):
        self.server.cuts = [1000, 0, 5000, 60000]
        done = self.get_one("--bin-only")
        self.assert_whole()
        self.assertEqual(done.stderr.count("trying again"), 4)
        self.assertIn((f"{VALIDATION}.bin", "bytes=6000-"), self.server.asked)

    def test_command_that_gave_up_goes_on(self):
        self.server.cuts = [1000] * 6 + [0] * 6
        done = self.get_one("--bin-only", code=1)
        self.assert_refused(done, f"{VALIDATION}.bin", "cut", "the same command goes on")
        self.assertEqual((self.data / f"{VALIDATION}.bin.part").stat().st_size, 6000)
        self.get_one("--bin-only")
        self.assert_whole()

    def test_file_that_comes_in_many_parts(self):
        """Tries that bring something do not count."""
        self.server.cuts = [9000] * 8
        done = self.get_one("--bin-only")
        self.assertEqual(done.stderr.count("trying again"), 8)
        self.assert_whole()

    def test_server_that_never_sends_all(self):
        """A file that begins anew with each try has not moved on."""
        self.server.ranges, self.server.cuts = False, [1000] * 20
        self.get_one("--bin-only", code=1)
        self.assertGreater(len(self.server.cuts), 10)

    def test_server_that_sends_only_whole_files(self):
        self.server.ranges, self.server.cuts = False, [1000]
        self.get_one("--bin-only")
        self.assert_whole()

    def test_server_that_sends_another_part(self):
        self.server.shift, self.server.cuts = 500, [1500]
        done = self.get_one("--bin-only")
        self.assertIn("another part", done.stderr)
        self.assert_whole()

    def test_server_that_lies(self):
        for name, value in (("Content-Length", "abc"), ("Content-Length", "9" * 5000)):
            self.server.lies = {name: value}
            self.get_one("--bin-only", code=2)
        self.server.lies = {}
        self.get_one("--bin-only")
        self.assert_whole()

    def test_addresses_that_cannot_be(self):
        for address in ("foo", "//x", "http://[::1", "http://" + 300 * "a", "http://127.0.0.1:1\n", "file:///etc"):
            done = self.get_one("--bin-only", code=2, address=address)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_partial_file_that_is_none(self):
        self.data.mkdir()
        os.mkfifo(self.data / f"{VALIDATION}.bin.part")
        self.assert_refused(self.get_one("--bin-only", code=2), "not a regular file")
        (self.data / f"{VALIDATION}.bin.part").unlink()
        (self.data / f"{VALIDATION}.bin.part").symlink_to("/dev/full")
        self.assert_refused(self.get_one("--bin-only", code=2), "not a regular file")

    def test_program_that_cannot_run(self):
        program = self.directory / "program"
        program.write_text("rubbish")
        program.chmod(0o755)
        done = self.get("--shards", 1, "--program", program, code=2)
        self.assertIn("program: Exec format error", done.stderr.splitlines()[-1])

    def test_server_that_is_busy(self):
        self.server.codes[f"{FIRST}.bin"] = [503, 429]
        done = self.get_one("--bin-only")
        self.assert_whole()
        self.assertEqual([line for line in done.stderr.splitlines() if "waits" in line], ["waits 2 s", "waits 4 s"])

    def test_server_that_says_when_to_come_back(self):
        """In seconds, or at a time; words that are neither are passed over."""
        for asked, waits in (("120", r"waits 120 s"), ("1", r"waits 2 s"), ("soon", r"waits 2 s"), ("-5", r"waits 2 s"),
                             (email.utils.formatdate(time.time() + 400), r"waits (3[5-9]\d|400)(\.\d+)? s"),
                             ("Wed, 21 Oct 2015 07:28:00 GMT", r"waits 2 s"), ("Wed, 99 Foo", r"waits 2 s")):
            with self.subTest(asked=asked):
                self.server.retry_after, self.server.codes[f"{FIRST}.bin"] = asked, [429]
                done = self.get_one("--bin-only")
                self.assertRegex(done.stderr, rf"says 429 Too Many Requests; trying again.*\n{waits}\n$")
                self.assertEqual("as it asks" in done.stderr, waits != "waits 2 s", done.stderr)
                self.assert_whole()
                (self.data / f"{FIRST}.bin").unlink()

    def test_server_that_asks_for_too_long_a_wait(self):
        self.server.retry_after, self.server.codes[f"{FIRST}.bin"] = "86400", [503]
        done = self.get_one("--bin-only", code=1)
        self.assert_refused(done, f"{FIRST}.bin", "503", "come back in 86400 s", "the same command goes on")
        self.assertNotIn("waits", done.stderr)

    def test_token(self):
        """It goes to the server of HF_ENDPOINT, also where that redirects within itself, and to no other."""
        self.server.digests[f"{VALIDATION}.bin"] = hashlib.sha256(self.server.files[f"{VALIDATION}.bin"]).hexdigest()
        self.get_one("--bin-only", HF_TOKEN=" hf_secret\n")
        self.assert_whole()
        self.assertEqual(self.server.tokens, ["Bearer hf_secret"] * 3)
        shutil.rmtree(self.data)
        self.server.tokens.clear()
        other = self.start_server()
        other.files = self.server.files
        self.server.elsewhere = address_of(other)
        self.get_one("--bin-only", HF_TOKEN="hf_secret")
        self.assert_whole()
        self.assertEqual((self.server.tokens, other.tokens), (["Bearer hf_secret"] * 2, [None] * 2))
        self.server.tokens.clear()
        shutil.rmtree(self.data)
        self.get_one("--bin-only")
        self.assertEqual(self.server.tokens, [None] * 2)

    def test_token_that_is_wrong(self):
        self.server.codes[f"{FIRST}.bin"] = [401]
        self.assert_refused(self.get_one("--bin-only", code=2, HF_TOKEN="hf_x"), "401", "HF_TOKEN is sent")
        self.server.codes[f"{FIRST}.bin"] = [403]
        self.assert_refused(self.get_one("--bin-only", code=2), "403", "HF_TOKEN is not set")
        done = self.get_one("--bin-only", code=2, HF_TOKEN="hf_secret\nX: y")
        self.assert_refused(done, "HF_TOKEN")
        self.assertNotIn("hf_secret", done.stderr)

    def test_directory_of_the_data(self):
        """--data as record.sh names it; --out is the same."""
        for option in ("--data", "--out"):
            self.data = self.directory / option.strip("-")
            self.get_one("--bin-only", option, self.data.name)
            self.assert_whole()
        self.assertIn("the name of the directory is empty", self.get_one("--data", "", code=2).stderr)

    def test_wrong_files(self):
        good = self.server.files[f"{FIRST}.bin"]
        for what, wrong in {"not a .bin file": b"<html>" + bytes(2000), "not a .bin": b"", "bytes, but": good[:-2],
                            "but the file has": good + bytes(4), "not a .bin file of": bin_file(10, 0, magic=1),
                            "tokens": struct.pack("<256i", 20240520, 1, -1, *[0] * 253)}.items():
            self.server.files[f"{FIRST}.bin"] = wrong
            self.assert_refused(self.get_one("--bin-only", code=2), f"{FIRST}.bin", what)
            self.assertFalse((self.data / f"{FIRST}.bin.part").exists())

    def test_digest_of_the_server(self):
        for name in (VALIDATION, FIRST):
            self.server.digests[f"{name}.bin"] = hashlib.sha256(self.server.files[f"{name}.bin"]).hexdigest()
        changed = bytearray(self.server.files[f"{FIRST}.bin"])
        changed[5000] ^= 1
        good, self.server.files[f"{FIRST}.bin"] = self.server.files[f"{FIRST}.bin"], bytes(changed)
        self.assert_refused(self.get_one("--bin-only", code=2), f"{FIRST}.bin", "SHA-256")
        self.server.files[f"{FIRST}.bin"] = good
        self.get_one("--bin-only")
        self.assert_whole()

    def test_missing_file_and_missing_server(self):
        del self.server.files[f"{FIRST}.bin"]
        self.assert_refused(self.get_one("--bin-only", code=2), f"{FIRST}.bin", "404")
        self.assertFalse((self.data / f"{FIRST}.bin.part").exists())
        self.server.server_close()
        self.assert_refused(self.get_one("--bin-only", code=1), "without internet")

    def test_file_that_is_there_and_wrong_stays(self):
        self.data.mkdir()
        (self.data / f"{VALIDATION}.bin").write_bytes(b"mine")
        done = self.get_one("--bin-only", code=2)
        self.assert_refused(done, f"{VALIDATION}.bin", "remove it")
        self.assertEqual((self.data / f"{VALIDATION}.bin").read_bytes(), b"mine")

    def test_shard_that_is_none_stays(self):
        self.data.mkdir()
        for content in (b"", b"\x89HD", b"mine" * 3):
            (self.data / f"{VALIDATION}.h5").write_bytes(content)
            self.assert_refused(self.get_one(code=2), f"{VALIDATION}.h5", "remove it")
            self.assertEqual((self.data / f"{VALIDATION}.h5").read_bytes(), content)

    def test_two_commands_at_once(self):
        self.data.mkdir()
        with open(self.data / f"{VALIDATION}.bin.part", "wb") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            self.assert_refused(self.get_one("--bin-only", code=2), "another command")

    def test_bin_files_are_deleted_where_asked(self):
        self.get_one("--delete-bin")
        self.assertEqual(sorted(path.name for path in self.data.iterdir()), sorted([f"{VALIDATION}.h5", f"{FIRST}.h5"]))

    def test_bin_files_stay_where_no_shard_was_made(self):
        done = self.get("--shards", 1, "--program", "true", "--delete-bin", code=2)
        self.assertIn(f"did not make data/{VALIDATION}.h5", done.stderr)
        self.assertTrue((self.data / f"{VALIDATION}.bin").exists())

    def test_bin_file_that_is_a_pipe(self):
        self.data.mkdir()
        os.mkfifo(self.data / f"{VALIDATION}.bin")
        self.assert_refused(self.get_one("--bin-only", code=2), "not a regular file")

    def test_module_of_hugging_face(self):
        modules = self.directory / "modules"
        modules.mkdir()
        (self.directory / "source").mkdir()
        for name, data in self.server.files.items():
            (self.directory / "source" / name).write_bytes(data)
        (modules / "huggingface_hub.py").write_text(
            "import shutil\n"
            "def hf_hub_download(*, repo_id, filename, repo_type, local_dir):\n"
            "    assert (repo_id, repo_type) == ('kjj0/fineweb10B-gpt2', 'dataset')\n"
            "    return shutil.copy(f'source/{filename}', local_dir)\n")
        self.get_one(modules=modules)
        self.assert_whole()
        self.assertEqual(self.server.asked, [])
        (self.directory / "source" / "fineweb_train_000002.bin").write_bytes(b"wrong")
        done = self.get("--shards", 2, "--program", small_run.PROGRAM, modules=modules, code=2)
        self.assertIn("fineweb_train_000002.bin: not a .bin file", done.stderr)

    def test_table_of_the_tokenizer(self):
        self.server.files["merges.txt"] = b"#version: 0.2\na b\n"
        done = self.get_one("--bin-only", "--tokenizer", code=2, table=b"another")
        self.assertIn("not GPT-2's table", done.stderr.splitlines()[-1])
        self.assertEqual(list(self.data.iterdir()), [])
        self.server.asked.clear()
        self.get_one("--bin-only", "--tokenizer", table=self.server.files["merges.txt"])
        self.assertEqual((self.data / "vocab.bpe").read_bytes(), self.server.files["merges.txt"])
        self.assert_whole()
        (self.data / "vocab.bpe").write_bytes(b"mine")
        self.server.asked.clear()
        self.get_one("--bin-only", "--tokenizer")
        self.assertEqual((self.server.asked, (self.data / "vocab.bpe").read_bytes()), ([], b"mine"))

    def test_arguments(self):
        for arguments in (["--shards", 0], ["--shards", 104], ["--program", "no-such-program"],
                          ["--bin-only", "--delete-bin"], ["--dataset", "other"]):
            done = self.get(*arguments, code=2)
            self.assertIn(str(arguments[0]), done.stderr.splitlines()[-1] + done.stderr)
            self.assertFalse(self.data.exists())


if __name__ == "__main__":
    small_run.main()
