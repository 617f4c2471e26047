"""Records 21 and 89 on two ranks as one node and as two nodes: small ones on CPUs, whole ones on two GPUs."""

from harness import FaultTest, small_run
from two_nodes import TwoNodes


class Records(TwoNodes, FaultTest):
    def test_record21(self):
        self.compare("record21")

    def test_record89(self):
        self.compare("record89")


if __name__ == "__main__":
    small_run.main()
