#!/usr/bin/env python3
"""Checks that comments and pages name only what exists: members of the repository's classes and namespaces, and files.

Usage: check_comments.py SOURCE_DIR; exit 1 names each line. A member is known by its name alone: overloads and types are
not told apart. Members of other libraries are not looked at.
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

CODE = (".hpp", ".cpp", ".cu", ".cuh")
FOLDERS = ("src", "kernels", "tests", "jobscripts", "docs", "cmake", "spack", "inputs", "benchmarks")
HIDDEN_FOLDERS = (".github",)
# Files whose comments begin with #, but Python's.
HASH = (".sh", ".sbatch", ".toml", ".cmake", ".yml", ".yaml")
# Namespaces and classes of other libraries.
FOREIGN = {"std", "testing", "Kokkos"}
# They tell of files that are gone.
HISTORY = {"CHANGELOG.md", "docs/performance_log.md"}

# What a scan of C++ tells apart: comments, strings, and all else.
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
SCOPE = re.compile(r"\b(?:(namespace)|(?:class|struct|union)|(enum)(?:\s+(?:class|struct))?)\s+"
                   r"(?:alignas\([^)]*\)\s*|\[\[.*?\]\]\s*)*((?:\w+::)*\w+)\s*(?:<[^{};]*>)?(?:\s+final)?"
                   r"(?:\s*:(?!:)([^{};]*))?\s*$")
MEMBER = re.compile(r"\b([A-Za-z_]\w*)(?:<[\w:, ]*>)?::(?=~?([A-Za-z_]\w*))")
PATH = re.compile(rf"(?<![\w/.$}}-])((?:{'|'.join(FOLDERS)})/[\w./*-]*[\w*])(?![\w<{{$])")
# What a line of a script tells apart: strings, comments, and all else.
HASH_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|(?<!\S)#.*')
CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
FILE = re.compile(r"(?<![\w/.<>*$}-])([\w-]+\.(?:hpp|cpp|cuh|cu))\b")


def split(text):
    """The code of a C++ source, with blanks for comments and strings, and its comments as (line number, text)."""
    code, comments, end = [], [], 0
    for match in TOKEN.finditer(text):
        code.append(text[end:match.start()])
        if match[0].startswith("/"):
            comments.append((text.count("\n", 0, match.start()) + 1, match[0]))
        code.append(re.sub(r"[^\n]", " ", match[0]))
        end = match.end()
    return "".join([*code, text[end:]]), comments


class Scopes:
    """Classes, enumerations and namespaces by their names, and the identifiers that stand directly within them."""

    def __init__(self):
        self.members, self.bases = {}, {}

    def add(self, code):
        code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", "", code, flags=re.MULTILINE)
        open_scopes, begin = [], 0
        for brace in re.finditer(r"[{};]", code):
            piece = code[begin:brace.start()]
            self.note(open_scopes, piece)
            if brace[0] == "{":
                open_scopes.append(self.opened(piece))
            elif brace[0] == "}" and open_scopes:
                open_scopes.pop()
            begin = brace.end()
        for name, target in re.findall(r"\bnamespace (\w+) = (?:\w+::)*(\w+);", code):
            self.members.setdefault(name, set())
            self.bases.setdefault(name, set()).add(target)
        for owner, member in re.findall(r"\b(\w+)(?:<[\w:, ]*>)?::~?(\w+)\s*[({=;]", code):
            self.members.setdefault(owner, set()).add(member)

    def add_targets(self, text):
        """Targets that CMake defines within a namespace."""
        for scope, target in re.findall(r"\badd_library\((\w+)::(\w+)", text):
            self.members.setdefault(scope, set()).add(target)

    def opened(self, piece):
        """The names of the scope that a brace opens; none for functions, loops and initialisers."""
        found = SCOPE.search(piece)
        if not found:
            return ()
        names = found[3].split("::") if found[1] else [found[3].split("::")[-1]]
        for name in names:
            self.members.setdefault(name, set())
        if found[4] and not found[2]:
            self.bases.setdefault(names[-1], set()).update(re.findall(r"\w+", found[4]))
        return tuple(names)

    def note(self, open_scopes, piece):
        """What a piece of code declares in the innermost scope."""
        used = re.fullmatch(r"\s*using namespace (?:\w+::)*(\w+)", piece)
        for name in open_scopes[-1] if open_scopes else ():
            self.members[name].update(re.findall(r"[A-Za-z_]\w*", piece))
            if used:
                self.bases.setdefault(name, set()).add(used[1])

    def has(self, name, member):
        seen, waiting = set(), [name]
        while waiting:
            scope = waiting.pop()
            if member in self.members.get(scope, ()) or member == scope:
                return True
            seen.add(scope)
            waiting += self.bases.get(scope, set()) - seen
        return False

    def missing(self, text):
        """Members that a text names and no scope of that name has; all those of classes that do not exist."""
        foreign_until = -1
        for match in MEMBER.finditer(text):
            name = match[1]
            if name in FOREIGN or match.start() == foreign_until:
                foreign_until = match.end()
            elif not self.has(name, match[2]) if name in self.members else CLASS.fullmatch(name):
                yield f"{name}::{match[2]}"


class Files:
    """Those of the repository, by path and by name."""

    def __init__(self, root, paths):
        self.root, self.paths = root, {str(path.relative_to(root)) for path in paths}
        self.names = {path.name for path in paths}
        self.known = self.paths | {str(Path(path).with_suffix("")) for path in self.paths}
        self.known |= {str(parent) for path in self.paths for parent in Path(path).parents}

    def exists(self, path):
        """A file, a module, which is a file without its ending, or a folder; for a pattern, one that matches it."""
        if "*" not in path:
            return path in self.known
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*"))
        return any(pattern.fullmatch(known) for known in self.known)

    def missing(self, text, folder, names=True):
        """Paths that a text names, from the root or from the text's own folder, and that do not exist."""
        for match in PATH.finditer(text):
            if not self.exists(match[1]) and not self.exists(f"{folder}/{match[1]}"):
                yield match[1]
        for match in FILE.finditer(text) if names else ():
            if match[1] not in self.names:
                yield match[1]


def python_comments(text):
    """(line number, text) of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            yield node.body[0].lineno, node.body[0].value.value


def hash_comments(text):
    """(line number, text) of comments that begin with #; strings and documents of several lines are read as code."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, token) for token in HASH_TOKEN.findall(line) if token.startswith("#"))


def lines_of(number, text):
    return [(number + i, line) for i, line in enumerate(text.splitlines())]


def breaches(root):
    every = [path for folder in (*FOLDERS, *HIDDEN_FOLDERS) for path in sorted((root / folder).rglob("*")) if path.is_file()]
    every += sorted(path for path in root.iterdir() if path.is_file())
    files, scopes, remarks = Files(root, every), Scopes(), []
    for path in every:
        name = str(path.relative_to(root))
        if path.suffix in CODE:
            code, comments = split(path.read_text())
            scopes.add(code)
            remarks += [(name, line) for comment in comments for line in lines_of(*comment)]
        elif path.suffix == ".py":
            remarks += [(name, line) for comment in python_comments(path.read_text()) for line in lines_of(*comment)]
        elif path.suffix in HASH or path.name == "CMakeLists.txt":
            text = path.read_text()
            scopes.add_targets(text)
            remarks += [(name, comment) for comment in hash_comments(text)]
        elif path.suffix == ".md" and name not in HISTORY:
            remarks += [(name, line) for line in lines_of(1, path.read_text())]
    for name, (number, text) in remarks:
        for member in scopes.missing(text):
            yield f"{name}:{number}: {member} does not exist"
        for file in files.missing(text, Path(name).parent, names=not name.endswith(".py")):
            yield f"{name}:{number}: no file {file}"


def main():
    found = list(dict.fromkeys(breaches(Path(sys.argv[1]).resolve())))
    print("\n".join(found) or "all that comments name exists")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
