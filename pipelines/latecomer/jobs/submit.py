"""Application for spark-submit: ``spark-submit submit.py run QUERY.yaml --lake URI`` is ``latecomer run ...``."""

from latecomer.jobs.cli import main

if __name__ == "__main__":
    main()
