"""The application for spark-submit: ``spark-submit submit.py run QUERY.yaml --lake URI`` is ``latecomer run ...``."""

from latecomer.jobs.cli import command

if __name__ == "__main__":
    command()
