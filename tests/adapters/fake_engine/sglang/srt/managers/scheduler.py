from sglang.srt.layers import engram


class Scheduler:
    def __init__(self, rows):
        self.table = engram.EngramEmbedding(rows, 64, 0, column_bounds=(0, rows))
