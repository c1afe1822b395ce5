"""The kernels under Triton's interpreter, which needs TRITON_INTERPRET=1 before Triton's import."""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from interpreting import teach_bfloat16_dots

    teach_bfloat16_dots()
