"""What check_lengths.py finds. Usage: test_check_lengths.py"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_lengths


def body(lines):
    return "  f();\n" * lines


class Functions(unittest.TestCase):
    def assert_functions(self, text, *expected):
        with self.subTest(text=text[:60]):
            self.assertEqual(list(check_lengths.functions_of_cpp(text)), list(expected))

    def test_what_a_function_is(self):
        for opening in ("void f() {", "int A::f() const {", "int f() noexcept(g()) override {", "A::A() : b_(1) {",
                        "auto f() -> std::vector<int> {", "TEST_F(Suite, Case) {", "const auto f = [] {",
                        "template <class T>\n__global__ void __launch_bounds__(128)\n    f(T* x) {",
                        "const std::function<void()> table[] = {[](int x) {"):
            start = opening.count("\n") + 1
            self.assert_functions(f"{opening}\n{body(3)}}}\n" + "};\n" * opening.startswith("const std"), (start, 5))

    def test_what_no_function_is(self):
        for opening in ("namespace {", "struct A {", "class A final : public B<int> {", "enum class A {",
                        'extern "C" {', "const int table[] = {", "constexpr Options options{"):
            self.assert_functions(f"{opening}\n  1\n}};\n")

    def test_functions_within_others_belong_to_them(self):
        self.assert_functions("struct A {\n  void f() {\n    if (x) {\n      g([&] {\n      });\n    }\n  }\n};\n", (2, 6))
        self.assert_functions("namespace a {\nvoid f() {\n}\nvoid g() {\n  h();\n}\n}\n", (2, 2), (4, 3))

    def test_members_with_braces(self):
        self.assert_functions("A::A(int b)\n    : b_{b},\n      c_{} {\n  f();\n}\n", (3, 3))

    def test_what_looks_like_a_brace(self):
        self.assert_functions("#define OPEN {\\\n  {\nvoid f() {  // {\n  g('{', \"{\", R\"({)\");  /* {\n} */\n}\n", (3, 4))

    def test_braces_that_do_not_pair(self):
        for text, what in (("void f() {\n", "line 1: a brace is never closed"),
                           ("}\n", "line 1: a brace closes that was never opened")):
            with self.assertRaisesRegex(ValueError, what):
                list(check_lengths.functions_of_cpp(text))

    def test_functions_of_python(self):
        text = "def f():\n    '''Doc.'''\n    def g():\n        return 1\n    return g\n\nclass A:\n    async def h(self):\n        pass\n"
        self.assertEqual(sorted(check_lengths.functions_of_python(text)), [(1, 5), (3, 2), (8, 2)])


class Breaches(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def run_on(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        done = subprocess.run([sys.executable, "-B", check_lengths.__file__, self.root], capture_output=True, text=True)
        file.unlink()
        return done.returncode, done.stdout

    def test_files(self):
        for path, limit in (("src/base/a.hpp", 450), ("kernels/linear/a.cu", 450), ("jobscripts/tools/a.py", 450),
                            ("jobscripts/a.sbatch", 450), ("tests/src/test_a.cpp", 500), ("tests/tools/a.py", 500)):
            self.assertEqual(self.run_on(path, "\n" * limit), (0, "1 files within the limits\n"))
            self.assertEqual(self.run_on(path, "\n" * (limit + 1)),
                             (1, f"{path} has {limit + 1} lines, more than {limit}\n"))

    def test_data_may_be_long(self):
        (self.root / "src").mkdir()
        (self.root / "src/a.cpp").touch()
        self.assertEqual(self.run_on("src/data.csv", "\n" * 600), (0, "1 files within the limits\n"))

    def test_functions(self):
        self.assertEqual(self.run_on("src/a.cpp", f"void f() {{\n{body(58)}}}\n")[0], 0)
        self.assertEqual(self.run_on("src/a.cpp", f"\nvoid f() {{\n{body(59)}}}\n"),
                         (1, "src/a.cpp:2: a function of 61 lines, more than 60\n"))
        self.assertEqual(self.run_on("tests/a.py", "def f():\n" + "    g()\n" * 60),
                         (1, "tests/a.py:1: a function of 61 lines, more than 60\n"))

    def test_what_cannot_be_read(self):
        self.assertEqual(self.run_on("src/a.cpp", "void f() {\n"),
                         (1, "src/a.cpp: cannot be read: line 1: a brace is never closed\n"))
        self.assertEqual(self.run_on("tests/a.py", "def f(:\n")[0], 1)

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(self.run_on("README.md", "")[0], 1)


if __name__ == "__main__":
    unittest.main()
