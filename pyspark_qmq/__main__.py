"""What `spark-submit` runs: the jobs of `qmq pipeline`, on whatever master it was told."""

from qmq.cli.pipeline import pipeline

if __name__ == "__main__":
    pipeline()
