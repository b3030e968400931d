"""Sends runs to TensorBoard or Weights & Biases, while they go on or afterwards.

    python3 dev/follow.py RUN [RUN ...] --tensorboard FOLDER     (pip install tensorboard)
    python3 dev/follow.py RUN [RUN ...] --wandb PROJECT          (pip install wandb)
    --once: what is there now, then stop; otherwise until interrupted    --every SECONDS (5)

A RUN is an --out folder of train_gpt. Every number of its metrics.jsonl becomes a curve over the step, the samples become
text, options.cfg becomes the run's config. A run that goes on after a stop writes the steps behind its checkpoint anew;
they are taken once. Started again, this goes on where it was (W&B), or writes its own event files anew (TensorBoard).
"""
import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

SUFFIX = ".fsdp"  # of the event files that are ours


def read_options(run):
    """options.cfg as a dictionary; numbers as numbers."""
    options = {}
    path = run / "options.cfg"
    for line in path.read_text().splitlines() if path.exists() else []:
        name, found, value = line.partition("=")
        if found and not line.startswith("#"):
            value = value.strip()
            try:
                options[name.strip()] = json.loads(value)
            except ValueError:
                options[name.strip()] = value
    return options


class Follower:
    """The new records of a run's metrics.jsonl, each once, whatever a resumed run does to the file."""

    def __init__(self, run):
        self.path, self.place, self.file_id, self.known = run / "metrics.jsonl", 0, None, set()

    def records(self):
        if not self.path.exists():
            return
        with open(self.path, "rb") as f:
            status = os.fstat(f.fileno())
            if status.st_ino != self.file_id or status.st_size < self.place:
                self.file_id, self.place = status.st_ino, 0
            f.seek(self.place)
            data = f.read()
        whole = data.rfind(b"\n") + 1
        self.place += whole
        for line in data[:whole].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                print(f"{self.path}: left out a line that is no JSON: {line[:60]!r}", file=sys.stderr)
                continue
            key = (record["step"], "sample" if "sample" in record else "train" if "steps" in record else "val")
            if key not in self.known:
                self.known.add(key)
                yield record


def curves(record):
    """(name, value) of the numbers of a record."""
    place = "train" if "steps" in record else "val"
    for name, value in record.items():
        if name in ("step", "steps") or isinstance(value, (str, bool, type(None))):
            continue
        yield f"{place}/{name.removeprefix('val_')}", value


class TensorBoard:
    def __init__(self, run, folder, options):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary, self.text_pb = event_pb2.Event, summary_pb2.Summary, summary_v2.text_pb
        own = Path(folder) / run.resolve().name
        for old in own.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        self.writer = EventFileWriter(str(own), filename_suffix=SUFFIX)
        self.text(0, "options", "\n".join(f"    {name} = {value}" for name, value in options.items()))

    def add(self, step, summary):
        self.writer.add_event(self.event(wall_time=time.time(), step=step, summary=summary))

    def numbers(self, step, values):
        self.add(step, self.summary(value=[self.summary.Value(tag=n, simple_value=v) for n, v in values.items()]))

    def text(self, step, name, text):
        self.add(step, self.text_pb(name, text))

    def flush(self):
        self.writer.flush()


class Wandb:
    def __init__(self, run, project, options):
        import wandb

        self.wandb = wandb
        self.state = run / "follow.json"
        state = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.sent = state.get("step", -1)  # steps up to this one are there already
        self.last = self.sent
        name = str(run.resolve())
        self.run = wandb.init(project=project, name=run.resolve().name, config=options, resume="allow", reinit="create_new",
                              id=state.get("id", hashlib.sha256(name.encode()).hexdigest()[:16]))
        self.run.define_metric("*", step_metric="step")

    def send(self, step, values):
        if step > self.sent:
            self.run.log({"step": step, **values})
            self.last = max(self.last, step)

    def numbers(self, step, values):
        self.send(step, values)

    def text(self, step, name, text):
        self.send(step, {name: self.wandb.Html("<pre>" + text.replace("&", "&amp;").replace("<", "&lt;") + "</pre>")})

    def flush(self):
        # The last step may still get a validation or a sample: it is complete when the next one has begun.
        self.state.write_text(json.dumps({"step": self.last - 1, "id": self.run.id}) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    p.add_argument("--tensorboard", metavar="FOLDER")
    p.add_argument("--wandb", metavar="PROJECT")
    p.add_argument("--once", action="store_true")
    p.add_argument("--every", type=float, default=5, metavar="SECONDS")
    a = p.parse_args()
    if bool(a.tensorboard) == bool(a.wandb):
        p.error("expected either --tensorboard FOLDER or --wandb PROJECT")
    for run in a.runs:
        if not run.is_dir():
            p.error(f"{run}: expected the --out folder of a run")
    sinks = []
    for run in a.runs:
        options = read_options(run)
        try:
            sink = TensorBoard(run, a.tensorboard, options) if a.tensorboard else Wandb(run, a.wandb, options)
        except ModuleNotFoundError as e:
            sys.exit(f"dev/follow.py: found no {e.name}: pip install {'tensorboard' if a.tensorboard else 'wandb'}")
        sinks.append((Follower(run), sink))
    try:
        while True:
            for follower, sink in sinks:
                for record in follower.records():
                    if "sample" in record:
                        sink.text(record["step"], "sample", record["sample"])
                    else:
                        sink.numbers(record["step"], dict(curves(record)))
                sink.flush()
            if a.once:
                break
            time.sleep(a.every)
    except KeyboardInterrupt:
        pass


main()
