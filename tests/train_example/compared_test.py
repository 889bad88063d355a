"""Trained layers beside initialised ones: compare_layers takes the layer files that train writes.

    python3 compared_test.py TRAIN COMPARE_LAYERS
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TRAIN, COMPARE_LAYERS = sys.argv[1:3]


class Compared(unittest.TestCase):
    def run_on_trained(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder) / "run"
            subprocess.run([TRAIN, "--preset", "smoke", "--steps", "2", "--judge-every", "2", "--held-out-tokens", "2048",
                            "--vocabulary", "512", "--ffn", kind, "--out", at], check=True, capture_output=True)
            return subprocess.run([COMPARE_LAYERS, "--layer-file", at / "layer.1.safetensors", "--tokens", "100",
                                   "--seconds", "0.001"], capture_output=True, text=True)

    def test_a_row_more(self):
        for kind, composition in [("stem", "ffn(gate(silu), token_embedding)"),
                                  ("structmoe", "ffn(gate(gelu, sum(dense, routed_low_rank("),
                                  ("mort", "modulated(ffn(gate(silu), dense), modulator_pool("),
                                  ("meki_folded", "parallel(ffn(gate(silu), dense), ffn(gate(sigmoid), ")]:
            with self.subTest(kind):
                ran = self.run_on_trained(kind)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertRegex(ran.stdout, "(?m)^trained +" + re.escape(composition))
                self.assertIn("Largest difference from the double reference", ran.stdout)

    def test_other_blocks_are_named(self):
        ran = self.run_on_trained("moe")
        self.assertEqual(ran.returncode, 1)
        self.assertEqual(ran.stdout, "")
        self.assertRegex(ran.stderr, r"layer\.1\.safetensors: is a block of other options than those compared "
                                     r"\(block moe, expert\.block glu, num_experts 4, top_k 2\)")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
