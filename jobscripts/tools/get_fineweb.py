#!/usr/bin/env python3
"""Fetches the speedrun's tokens of FineWeb from Hugging Face and makes token shards of them.

The files *.bin hold text that was tokenised with GPT-2's vocabulary, 100 million tokens or 200 MB each. They come
through the module huggingface_hub where it is installed, else by HTTPS. What has arrived stays where it is: the same
command goes on where it was interrupted.
"""

import argparse
import datetime
import email.utils
import fcntl
import hashlib
import http.client
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # absent under PYTHONSAFEPATH

import tool

BUILT = pathlib.Path(__file__).resolve().parents[2] / "build" / "cpu" / "bin" / "nanorun"
# Name -> repository, beginning of the files' names, number of training files.
DATASETS = {"fineweb10B": ("kjj0/fineweb10B-gpt2", "fineweb", 103),
            "finewebedu10B": ("kjj0/finewebedu10B-gpt2", "finewebedu", 99),
            "fineweb100B": ("kjj0/fineweb100B-gpt2", "fineweb", 1030)}
# GPT-2's table of byte-pair encoding: address on the server, name here, SHA-256.
TABLE = "openai-community/gpt2/resolve/main/merges.txt"
TABLE_NAME, TABLE_DIGEST = "vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
HEADER = struct.Struct("<3i")  # magic, version, tokens
HEADER_BYTES, MAGIC, VERSION = 1024, 20240520, 1
HDF5_BEGIN = b"\x89HDF\r\n\x1a\n"
MAX_BYTES = HEADER_BYTES + 2 * (2**31 - 1)
CHUNK = 1 << 20
TRIES, WAIT_SECONDS, SILENCE_SECONDS = 6, 2, 60
LONGEST_WAIT_SECONDS = 600  # longest wait that a server may ask for
CUT = (http.client.HTTPException, ConnectionError, socket.timeout, TimeoutError)
WRONG_ANSWER = (ValueError, UnicodeError)  # urllib raises these for impossible addresses and headers


def parse_arguments(words=None):
    """The arguments in `words`, or of the command line where None is given."""
    parser = argparse.ArgumentParser(description=tool.summary(__doc__))
    parser.add_argument("--dataset", choices=DATASETS, default="fineweb10B", help="default: %(default)s")
    parser.add_argument("--shards", type=int, default=8, metavar="N",
                        help="training files to fetch, besides the one for validation (default: %(default)s, enough "
                             "for the records)")
    parser.add_argument("--data", "--out", dest="out", type=tool.directory, default=pathlib.Path("data"), metavar="DIR",
                        help="directory of the files and shards (default: %(default)s)")
    parser.add_argument("--program", default=str(BUILT) if BUILT.exists() else "nanorun",
                        help="nanorun (default: that of build/cpu, or else the one on the PATH)")
    parser.add_argument("--tokenizer", action="store_true",
                        help=f"GPT-2's table too, as {TABLE_NAME}, which the deck of record 89 needs")
    parser.add_argument("--bin-only", action="store_true", help="make no shards")
    parser.add_argument("--delete-bin", action="store_true", help="delete each .bin file once its shard is made")
    arguments = tool.parse(parser, words)
    most = DATASETS[arguments.dataset][2]
    if not 1 <= arguments.shards <= most:
        raise tool.ToolError(f"--shards: {arguments.dataset} has 1 to {most} training files, not {arguments.shards}")
    if arguments.bin_only and arguments.delete_bin:
        raise tool.ToolError("--bin-only and --delete-bin together would leave nothing")
    return arguments


class Progress:
    """A line that says how much of a file has arrived: redrawn on a terminal, else printed once."""

    def __init__(self, label, size, have):
        self.label, self.size, self.have, self.begin, self.drawn = label, size, have, time.monotonic(), 0.0
        self.fetched = 0
        self.redraws = sys.stdout is not None and sys.stdout.isatty()

    def add(self, count):
        self.have += count
        self.fetched += count
        if self.redraws and time.monotonic() - self.drawn > 0.5:
            self.drawn = time.monotonic()
            print(f"\r{self.text()}", end="", flush=True)

    def text(self):
        rate = self.fetched / max(time.monotonic() - self.begin, 1e-3)
        return f"{self.label}  {self.have / 1e6:.1f} of {self.size / 1e6:.1f} MB  {rate / 1e6:.1f} MB/s"

    def end(self):
        tool.say(("\r" if self.redraws else "") + self.text())


class Moved(urllib.request.HTTPRedirectHandler):
    """Follows redirections, and keeps what the first answer says of the file to which it points."""

    def __init__(self):
        self.digest = None

    def redirect_request(self, request, file, code, message, headers, url):
        self.digest = self.digest or digest_in(headers)
        further = super().redirect_request(request, file, code, message, headers, url)
        if further and place(further.full_url) == place(request.full_url):
            authorise(further)
        return further


def place(url):
    """Scheme, host and port of an address."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def access_token():
    """The access token for Hugging Face in the environment; empty where there is none. Throws ToolError."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch("[!-~]*", token):
        raise tool.ToolError("HF_TOKEN holds characters that no token has")
    return token


def authorise(request):
    """Adds the access token to a request. A redirection to another server does not carry it."""
    if token := access_token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")


def digest_in(headers):
    """The SHA-256 that Hugging Face gives as the file's tag, or None."""
    tag = (headers.get("X-Linked-Etag") or "").strip('W/"')
    return tag if re.fullmatch("[0-9a-f]{64}", tag) else None


def fetch_rest(url, part, label):
    """Appends what is missing to the open file. Returns the SHA-256 of the whole file, or None where the server does
    not say it. Throws an exception of CUT where the connection ends early."""
    moved = Moved()
    with tool.using(part.name):
        have = part.seek(0, os.SEEK_END)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    authorise(request)
    try:
        answer = urllib.request.build_opener(moved).open(request, timeout=SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is missing, or more is there than should be: verify() tells
            return moved.digest
        raise
    with answer:
        if answer.status != 206 or begin_of(answer.headers) != have:  # what does not follow what is there begins anew
            with tool.using(part.name):
                part.truncate(0)
            if answer.status == 206:
                raise ConnectionError("the server sent another part of the file than it was asked for")
            have = 0
        rest = int(answer.headers.get("Content-Length") or 0)
        require_space(part.name, rest)
        progress = Progress(label, have + rest, have)
        while chunk := answer.read(CHUNK):
            with tool.using(part.name):
                part.write(chunk)
            progress.add(len(chunk))
            if progress.have > MAX_BYTES:
                raise tool.ToolError(f"{url}: longer than any .bin file")
        with tool.using(part.name):
            part.flush()
        progress.end()
        if rest and progress.fetched < rest:
            raise ConnectionError("the connection was cut")
        return moved.digest or digest_in(answer.headers)


def begin_of(headers):
    """Offset of the first byte of a part of a file, or None."""
    found = re.match(r"bytes (\d{1,18})-", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def require_space(path, size):
    with tool.using(path):
        free = shutil.disk_usage(os.path.dirname(path) or ".").free
    if size > free:
        raise tool.ToolError(f"{path}: {size / 1e9:.2f} GB are to come, but only {free / 1e9:.2f} GB are free")


def fetch(url, path, label, check):
    """Fetches a file into FILE.part and renames it when it is complete and right. `check(FILE, SHA-256 or None)` throws
    if it is not."""
    name = f"{path}.part"
    if os.path.lexists(name):
        tool.require_regular(name)
    with tool.using(name):
        part = open(name, "ab")
    with part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise tool.ToolError(f"{name}: another command is fetching this file") from None
        try:
            digest = fetch_in_tries(url, part, label)
        except tool.ToolError:
            with tool.using(name):
                if os.fstat(part.fileno()).st_size == 0:
                    os.remove(name)
            raise
        try:
            check(name, digest)
        except tool.ToolError as error:
            with tool.using(name):
                os.remove(name)  # what follows it would be wrong too
            raise tool.ToolError(f"{url}: {error}") from None
        with tool.using(path):
            os.rename(name, path)


def fetch_in_tries(url, part, label):
    with tool.using(part.name):
        most = part.seek(0, os.SEEK_END)
    attempt = 0  # since the file was last longer than ever before
    while True:
        attempt += 1
        try:
            return fetch_rest(url, part, label)
        except WRONG_ANSWER as error:
            raise tool.ToolError(f"{url}: {error}") from None
        except (urllib.error.URLError, *CUT) as error:
            code = getattr(error, "code", None)
            why = f"the server says {code} {error.reason}" if code else getattr(error, "reason", error)
            why = tool.one_line(why or type(error).__name__)
            if code in (401, 403):
                why += " (HF_TOKEN is " + ("sent)" if access_token() else "not set)")
            if code and code != 429 and code < 500:  # it would say the same again
                raise tool.ToolError(f"{url}: {why}") from None
            with tool.using(part.name):
                have = part.seek(0, os.SEEK_END)
            if have > most:
                most, attempt = have, 0
            if attempt == TRIES:
                raise tool.ToolError(f"{url}: {why}; the same command goes on from here. On a machine without internet, "
                                     "fetch the files elsewhere and copy them", tool.NOT_DONE) from None
            asked = retry_after(error.headers) if code else 0
            if asked > LONGEST_WAIT_SECONDS:
                raise tool.ToolError(f"{url}: {why}, and to come back in {asked:.0f} s; the same command goes on from "
                                     "here", tool.NOT_DONE) from None
            pause = WAIT_SECONDS * max(attempt, 1)
            tool.warn(f"{label}: {why}; trying again" + (f" in {asked:.0f} s, as it asks" if asked > pause else ""))
            time.sleep(max(pause, asked))


def retry_after(headers):
    """Seconds that the server asks to wait, which it gives as a number or a date; 0 if it does not ask."""
    value = (headers.get("Retry-After") or "").strip()
    if re.fullmatch("[0-9]{1,9}", value):
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (until - datetime.datetime.now(datetime.timezone.utc)).total_seconds())


def verify(path, digest=None):
    """Throws ToolError unless the file is a complete .bin file of tokens with the SHA-256 `digest`, if this is
    known."""
    tool.require_regular(path)
    with tool.using(path), open(path, "rb") as file:
        header, size = file.read(HEADER.size), os.fstat(file.fileno()).st_size
    if len(header) < HEADER.size or HEADER.unpack(header)[:2] != (MAGIC, VERSION):
        raise tool.ToolError(f"{path}: not a .bin file of tokens")
    tokens = HEADER.unpack(header)[2]
    if tokens < 1 or size != HEADER_BYTES + 2 * tokens:
        raise tool.ToolError(f"{path}: {tokens} tokens need {HEADER_BYTES + 2 * tokens} bytes, but the file has {size}")
    if digest and digest_of(path) != digest:
        raise tool.ToolError(f"{path}: its SHA-256 is not that of the original")


def digest_of(path):
    whole = hashlib.sha256()
    with tool.using(path), open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            whole.update(chunk)
    return whole.hexdigest()


def verify_table(path, _=None):
    """Throws ToolError unless the file is GPT-2's table."""
    if digest_of(path) != TABLE_DIGEST:
        raise tool.ToolError(f"{path}: not GPT-2's table of byte-pair encoding")


def server():
    """Address of the server. Throws ToolError."""
    address = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not re.fullmatch(r"https?://[!-~]+", address):
        raise tool.ToolError(f"HF_ENDPOINT should be an address such as https://huggingface.co, not {address}")
    return address


def get_table(directory):
    """Fetches the table unless there is one."""
    path = directory / TABLE_NAME
    if os.path.lexists(path):
        tool.require_regular(path)
        tool.say(f"{TABLE_NAME}  is there")
    else:
        fetch(f"{server()}/{TABLE}", path, TABLE_NAME, verify_table)


def fetch_through_hub(hub, repository, name, directory):
    try:
        return hub.hf_hub_download(repo_id=repository, filename=name, repo_type="dataset", local_dir=str(directory))
    except Exception as error:  # its kinds of errors are many, and change with its versions
        raise tool.ToolError(f"{name}: huggingface_hub: {error or type(error).__name__}", tool.NOT_DONE) from None


def get(repository, name, directory, label):
    """The path of the file of this name, fetched unless it is there. Throws ToolError."""
    path = directory / name
    if os.path.lexists(path):
        try:
            verify(path)
        except tool.ToolError as error:
            raise tool.ToolError(f"{error}; remove it, and it is fetched anew") from None
        tool.say(f"{label}  is there")
        return path
    try:
        import huggingface_hub as hub
    except ImportError:
        fetch(f"{server()}/datasets/{repository}/resolve/main/{name}", path, label, verify)
    else:
        fetch_through_hub(hub, repository, name, directory)
        verify(path)
        tool.say(f"{label}  fetched")
    return path


def make_shard(program, path):
    """Makes FILE.h5 from FILE.bin. Throws ToolError."""
    with tool.using(program):
        done = subprocess.run([program, "shard", str(path.with_suffix("")), str(path)], text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"{program} ended with exit code {done.returncode}"]
        raise tool.ToolError(said[-1])
    if not path.with_suffix(".h5").is_file():
        raise tool.ToolError(f"{program} did not make {path.with_suffix('.h5')}")


def is_there(shard):
    """Whether the shard has been made. Throws ToolError if another file has its name, such as an empty one."""
    if not os.path.lexists(shard):
        return False
    tool.require_regular(shard)
    with tool.using(shard), open(shard, "rb") as file:
        begin = file.read(len(HDF5_BEGIN))
    if begin != HDF5_BEGIN:
        raise tool.ToolError(f"{shard}: not an HDF5 file; remove it, and the shard is made anew")
    return True


def get_all(arguments):
    """Fetches and makes all that the arguments name and that is not there. Throws ToolError."""
    repository, prefix, _ = DATASETS[arguments.dataset]
    program = shutil.which(arguments.program)
    if not program and not arguments.bin_only:
        raise tool.ToolError(f"{arguments.program}: no such program; build it, name it with --program, or give "
                             "--bin-only")
    with tool.using(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.tokenizer:
        get_table(arguments.out)
    names = [f"{prefix}_val_000000.bin", *(f"{prefix}_train_{i:06}.bin" for i in range(1, arguments.shards + 1))]
    for number, name in enumerate(names, 1):
        label = f"{name} ({number} of {len(names)})"
        shard = (arguments.out / name).with_suffix(".h5")
        if not arguments.bin_only and is_there(shard):
            tool.say(f"{label}  {shard} is there")
            continue
        path = get(repository, name, arguments.out, label)
        if not arguments.bin_only:
            make_shard(program, path)
        if arguments.delete_bin:
            with tool.using(path):
                path.unlink()


def main():
    get_all(parse_arguments())


if __name__ == "__main__":
    tool.run(main)
