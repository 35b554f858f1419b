from __future__ import annotations
import argparse, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from arms import BARE, CONTROL, OURS
from pairs import compare
TURN = {"mlp": (40, 60), "resnet": (1, 40), "gpt": (1, 40)}
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--programs", nargs="*", default=list(TURN))
    parser.add_argument("--arms", nargs="*", default=["default", "full", "off"])
    chosen = parser.parse_args()
    for program in chosen.programs:
        arms = [BARE, *[a for a in OURS if a.name in chosen.arms], CONTROL]
        steps, warm = TURN[program]
        out = compare(program, arms, pairs=chosen.pairs, steps=steps, warm=warm, say=print)
        print(program, f"{out.bare_ms:.2f} ms", {k: str(v) for k, v in out.ratios.items()}, out.viewer_share)
if __name__ == "__main__":
    main()
