"""Breaches that check_ops.py must find. Usage: test_check_ops.py"""

import shutil
import tempfile
import unittest
from pathlib import Path

import check_ops

ROOT = Path(__file__).resolve().parents[1]

DECLARED = """
#define TWICE(x) \\
  twice(x)
namespace nanorun::kernels {
/// Device code may call f(x).
template <class T>
struct Options {
  bool f() const { return g(1); }
};
namespace cuda {
inline constexpr int panel = ceil_div(8, 3);
struct Event {
  void g();
};
}  // namespace cuda
NANORUN_DECLARE_OPS({
  /// CUDA: T = bf16 (any).
  template <class T>
  void twice(Stream stream, Mat<T> out, Mat<const T> x, const Options<T>& options = {});
})
}  // namespace nanorun::kernels
"""


class CheckOps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for header in ("kernels/ops.hpp", "kernels/device/op.hpp", "kernels/stream/twice.hpp"):
            (self.root / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "kernels/device/op.hpp", self.root / "kernels/device")
        (self.root / "kernels/ops.hpp").write_text('#include "kernels/stream/twice.hpp"\n')

    def breaches(self, header):
        (self.root / "kernels/stream/twice.hpp").write_text(header)
        return list(check_ops.breaches(self.root))

    def test_an_op_that_is_declared_once_is_in_order(self):
        self.assertEqual(self.breaches(DECLARED), [])

    def test_a_declaration_for_one_implementation_is_a_breach(self):
        function = "void thrice(Stream stream,\n            int n);"
        template = f"template <class T>\n{function}"
        for text in (function, template):
            for names in ("nanorun::kernels::cuda", "nanorun::kernels::portable", "cuda"):
                with self.subTest(text=text, names=names):
                    found = self.breaches(f"{DECLARED}\nnamespace {names} {{\n{text}\n}}\n")
                    line = DECLARED.count("\n") + 3 + text.count("\n") - function.count("\n")
                    self.assertEqual(found, [f"kernels/stream/twice.hpp:{line}: "
                                             "thrice() is declared for one implementation alone"])

    def test_another_implementation_is_one_line(self):
        op = self.root / "kernels/device/op.hpp"
        line = "  NANORUN_DECLARE_IN(cuda, __VA_ARGS__)"
        op.write_text(op.read_text().replace(line, f"{line} \\\n  NANORUN_DECLARE_IN(hip, __VA_ARGS__)"))
        self.assertEqual(check_ops.implementations(self.root), ["portable", "cuda", "hip"])
        self.assertEqual(self.breaches(DECLARED), [])
        self.assertEqual(len(self.breaches(DECLARED + "namespace nanorun::kernels::hip {\nvoid thrice();\n}\n")), 1)

    def test_a_macro_that_declares_nothing_is_a_breach(self):
        (self.root / "kernels/device/op.hpp").write_text("#define NANORUN_DECLARE_OPS(...)\n")
        self.assertEqual(len(self.breaches(DECLARED)), 1)

    def test_bodies_that_no_test_compares_are_a_breach(self):
        for suffix, macro in ((".hpp", "TIERED_OPS"), (".hpp", "BODIES"), (".cuh", "TIERED")):
            header = self.root / f"kernels/stream/thrice{suffix}"
            header.write_text(f"NANORUN_DECLARE_{macro}({{\n  void thrice(Stream stream, int n);\n}})\n")
            test = self.root / "tests/cuda/test_cuda_tiers_of_streams.cpp"
            test.parent.mkdir(parents=True, exist_ok=True)
            compares = "hopper::thrice, ampere::thrice" if suffix == ".hpp" else '#include "kernels/stream/thrice.hpp"'
            with self.subTest(suffix=suffix, macro=macro):
                test.write_text(compares.replace("thrice", "twice"))
                self.assertEqual(self.breaches(DECLARED), [f"kernels/stream/thrice{suffix}: no tests/cuda/"
                                                           "test_cuda_tiers*.cpp compares the bodies of thrice()"])
                test.write_text(compares)
                self.assertEqual(self.breaches(DECLARED), [])
            header.unlink()

    def test_the_headers_of_the_program_are_in_order(self):
        self.assertEqual(list(check_ops.breaches(ROOT)), [])
        self.assertIn("kernels/stream/mix.hpp", check_ops.op_headers(ROOT))
        self.assertEqual(check_ops.implementations(ROOT)[:2], ["portable", "cuda"])
        names = {name for _, name in check_ops.bodies(ROOT)}
        self.assertLessEqual({"attention_backward", "linear_relu2_forward", "compute_triangle", "sum_chunks"}, names)


if __name__ == "__main__":
    unittest.main()
