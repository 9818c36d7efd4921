"""`kwire-pipeline test FILE SAMPLES`: try a pipeline on samples of records, without brokers.

Each sample prints one line, and another for each difference. Samples run in one local session, one
after the other. Nothing is written, except that ``--write`` adds missing results to a sample's
file.
"""

import tempfile

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.template import Loaded
from kwire_pipeline.engine.session import open_session, set_session
from kwire_pipeline.engine.trial import Trial, without_tables
from kwire_pipeline.errors import Refusal
from kwire_pipeline.samples import Results, differences, fill_in, find_samples, read_sample


def test(loaded: Loaded, samples: str, *, write: bool, topic: str | None) -> int:
    """Run the samples of a folder; raise Refusal if results differ from the expected ones."""
    pipeline = pipeline_of(loaded, topic)
    topic = pipeline.source.topics[0] if pipeline.source.topics else "topic"
    cases = [read_sample(path, topic) for path in find_samples(samples)]
    local = without_tables(pipeline)
    spark = open_session(local, connector=False)
    wrong = 0
    try:
        set_session(spark)
        with tempfile.TemporaryDirectory() as scratch:
            trial = Trial.prepare(spark, local, scratch)
            for sample in cases:
                results = trial.run(sample)
                if write and (names := fill_in(sample, results)):
                    print(f"wrote  {sample.path.stem}: {' and '.join(names)}; look at them")
                    sample = read_sample(sample.path, topic)
                lines = list(differences(sample, results))
                print(f"{'wrong' if lines else 'ok   '}  {sample.path.stem}: {in_words(results)}")
                for line in lines:
                    print(f"       {line}")
                wrong += bool(lines)
    finally:
        spark.stop()
    if wrong:
        raise Refusal(f"{wrong} of {len(cases)} samples differ: correct the pipeline or the sample")
    return 0


def pipeline_of(loaded: Loaded, topic: str | None) -> Pipeline:
    """Return the pipeline of the samples' topic."""
    if isinstance(loaded, Pipeline):
        if topic is not None:
            raise Refusal("--topic is for a file with {topic} in table.name")
        return loaded
    if topic is None:
        raise Refusal("each topic has its own table: add --topic and the topic of the samples")
    return loaded.pipeline_of(topic)


def in_words(results: Results) -> str:
    rows, letters = len(results.rows), len(results.letters)
    return (
        f"{rows} {'row' if rows == 1 else 'rows'}, "
        f"{letters} dead {'letter' if letters == 1 else 'letters'}"
    )
