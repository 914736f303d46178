"""The columns of a file of demonstrations."""

# Those that hold the lists after each step; `demonstration` is what SFT learns.
STEP_COLUMNS = {
    "teacher": "teacher",
    "remap": "remap",
    "reflect": "reflect",
    "collaborative": "collaborative",
    "adjust": "demonstration",
}
