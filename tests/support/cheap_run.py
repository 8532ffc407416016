"""Run a script at less cost: `regraft.check` draws few examples, and object files with torch's headers are kept.

run_fresh([[cheap_run.__file__, script]])      the script is what is tested, not the rules in it
"""

import runpy
import sys
from pathlib import Path

from regraft.compiler.aot import build
from regraft.compiler.tools.check import check

EXAMPLES = 3

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from support.kept_objects import kept

    assert check.__kwdefaults__ is not None
    check.__kwdefaults__["examples"] = EXAMPLES
    build._object = kept(build._object)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
