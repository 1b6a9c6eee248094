# SPDX-License-Identifier: MIT
"""The three pictures of docs/architecture.md, as boxes and arrows. A box names a class or file of the sources in its first line;
missing_names() lists those that the sources do not have, so that a picture cannot show what is gone."""
import re

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, LEFT = 158, 48, 24, 34, 8
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 } .name { font: 600 12px ui-monospace, monospace } .lane { font-weight: 600; fill: #666 }
.box { fill: #f6f8fa; stroke: #8c959f } .mark { fill: #ddf4ff; stroke: #1f6feb } .arrow { stroke: #57606a; fill: none; stroke-width: 1.5 }
.head { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .lane { fill: #aaa } .box { fill: #161b22; stroke: #6e7681 } .mark { fill: #0c2d4a; stroke: #6cb0ff }
  .arrow { stroke: #9da7b1 } .head { fill: #9da7b1 }
}
</style>"""


class Picture:
    def __init__(self, title, columns=4):
        self.title, self.parts, self.boxes, self.names, self.bottom = title, [], {}, [], 0
        self.width = 2 * LEFT + columns * BOX_WIDTH + (columns - 1) * GAP_X

    def place(self, column, row):
        return LEFT + column * (BOX_WIDTH + GAP_X), 26 + row * (BOX_HEIGHT + GAP_Y)

    def lane(self, row, words, column=0):
        x, y = self.place(column, row)
        self.parts.append(f'<text class="lane" x="{x:.0f}" y="{y - 9:.0f}">{words}</text>')

    def box(self, column, row, name, *notes, span=1, mark=False, code=True):
        """Returns the box's key for arrow()."""
        x, y = self.place(column, row)
        width = span * BOX_WIDTH + (span - 1) * GAP_X
        self.parts.append(f'<rect class="{"mark" if mark else "box"}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="5"/>')
        lines = [(name, ' class="name"' if code else "")] + [(n, "") for n in notes]
        for i, (words, kind) in enumerate(lines):
            at = y + BOX_HEIGHT / 2 + 4 + 15 * (i - (len(lines) - 1) / 2)
            self.parts.append(f'<text{kind} x="{x + width / 2:.0f}" y="{at:.0f}" text-anchor="middle">{words}</text>')
        if code:
            self.names.append(name)
        self.bottom = max(self.bottom, y + BOX_HEIGHT)
        self.boxes[(column, row)] = (x, y, width)
        return (column, row)

    def arrow(self, a, b, words=""):
        """From one box to the next: to the right in a row, otherwise down."""
        (ax, ay, aw), (bx, by, bw) = self.boxes[a], self.boxes[b]
        if ay == by:
            right = bx > ax
            points = [(ax + aw, ay + BOX_HEIGHT / 2), (bx - 6, by + BOX_HEIGHT / 2)] if right else \
                [(ax, ay + BOX_HEIGHT / 2), (bx + bw + 6, by + BOX_HEIGHT / 2)]
            x, y = points[-1]
            head = f"{x},{y - 4} {x + (6 if right else -6)},{y} {x},{y + 4}"
        else:
            # From the centre of the narrower box, so that arrows of one row stay apart.
            x = bx + bw / 2 if bw <= aw else ax + aw / 2
            points = [(x, ay + BOX_HEIGHT), (x, by - 6)]
            if not (ax <= x <= ax + aw and bx <= x <= bx + bw):
                middle = by - GAP_Y / 2
                points = [(ax + aw / 2, ay + BOX_HEIGHT), (ax + aw / 2, middle), (bx + bw / 2, middle), (bx + bw / 2, by - 6)]
                x = bx + bw / 2
            y = by - 6
            head = f"{x - 4},{y} {x},{y + 6} {x + 4},{y}"
        self.parts.append('<polyline class="arrow" points="' + " ".join(f"{px:.0f},{py:.0f}" for px, py in points) + '"/>')
        self.parts.append(f'<polygon class="head" points="{head}"/>')
        if words:
            self.parts.append(f'<text x="{points[-1][0] + 8:.0f}" y="{by - GAP_Y / 2 + 4:.0f}">{words}</text>')

    def chain(self, *keys):
        for a, b in zip(keys, keys[1:]):
            self.arrow(a, b)

    def svg(self):
        height = self.bottom + 10
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:.0f}" role="img" aria-label="{self.title}">\n' \
               f"<title>{self.title}</title>\n{STYLE}\n" + "\n".join(self.parts) + "\n</svg>\n"


def batch():
    p = Picture("The way of a batch: from files to the kernels of a step")
    p.lane(0, "threads of the loader")
    files = p.box(0, 0, "records.hpp", "bytes and a label")
    decode = p.box(1, 0, "ImageDecoders", "pixels of a region")
    augment = p.box(2, 0, "ImageAugmenter", "cuts out, mirrors")
    ring = p.box(3, 0, "Loader", "ring of ready batches", mark=True)
    p.chain(files, decode, augment, ring)
    p.lane(1, "the thread that trains: no copy after the ring")
    fit = p.box(3, 1, "fit", "takes the next batch")
    trainer = p.box(2, 1, "Trainer", "one step")
    steps = p.box(1, 1, "StepRunner", "numbers of the step")
    executor = p.box(0, 1, "Executor", "runs the plan")
    p.arrow(ring, fit)
    p.chain(fit, trainer, steps, executor)
    p.lane(2, "threads of the backend", 1)
    slot = p.box(0, 2, "BatchSlot", "memory of the batch")
    walk = p.box(1, 2, "PlanWalk", "segments, chunks")
    kernel = p.box(2, 2, "Kernel", "one op, some rows")
    arena = p.box(3, 2, "gradient arena", "tensors in final order", mark=True, code=False)
    p.arrow(executor, slot)
    p.chain(slot, walk, kernel, arena)
    return p


def gradient():
    p = Picture("The way of a gradient over Gloo, over servers, and on a GPU")
    p.lane(0, "on every rank, while the backward pass runs")
    arena = p.box(0, 0, "gradient arena", "a tensor is final", code=False, mark=True)
    walk = p.box(1, 0, "PlanWalk", "counts final tensors")
    exchange = p.box(2, 0, "GradientExchange", "a bucket is complete")
    strategy = p.box(3, 0, "AnyStrategy", "reduce or exchange")
    p.chain(arena, walk, exchange, strategy)
    heads = []
    for column, words in enumerate(("gloo, mpi", "ps", "ps_async", "nccl")):
        p.lane(2, words, column)
    bar = p.box(0, 1, "one of these ways, on threads or streams of its own", "(in an elastic job Elastic holds the strategy of the generation)", code=False, span=4)
    p.arrow(strategy, bar)
    ways = ((("AllReduce", "sums the bucket"), ("QueuedCommunicator", "a thread, in order"), ("HostRoutes", "host first, then hosts"),
             ("HostGroup", "or GlooMesh: adds up")),
            (("AllReduce", "the same strategy"), ("ServerCommunicator", "cuts it into parts"), ("RoundTable", "server: waits for all"),
             ("Server", "adds in rank order")),
            (("AsyncParameterServer", "pushes the bucket"), ("ServerCommunicator", "cuts it into parts"),
             ("OwnedOperations", "server: no waiting"), ("WeightStore", "updates, sends weights")),
            (("AllReduce", "on a stream"), ("NcclGroup", "in the GPU's memory"), ("wait_device", "the stream waits"),
             ("CudaStepFinisher", "kernels of the update")))
    for column, way in enumerate(ways):
        keys = [p.box(column, 2 + i, *box) for i, box in enumerate(way)]
        p.arrow((0, 1), keys[0])
        p.chain(*keys)
        heads.append(keys[-1])
    p.lane(6, "")
    host = p.box(0, 6, "HostStepFinisher", "waits for every bucket, then updates the weights", span=2, mark=True)
    taken = p.box(2, 6, "HostStepFinisher", "takes the weights", mark=True)
    device = p.box(3, 6, "weights", "the host never waited", mark=True, code=False)
    p.arrow(heads[0], host)
    p.arrow(heads[1], host)
    p.arrow(heads[2], taken)
    p.arrow(heads[3], device)
    return p


def members():
    p = Picture("A change of members: in order, and after a loss")
    p.lane(0, "a change in order")
    asked = p.box(0, 0, "Arbiter", "hosts file, SIGTERM")
    flag = p.box(1, 0, "step_flag", "sent with a step's sums")
    last = p.box(2, 0, "all ranks leave", "after the same step", code=False)
    p.chain(asked, flag, last)
    p.lane(1, "a loss")
    lost = p.box(0, 1, "Arbiter", "death, or a lease is over")
    interrupt = p.box(1, 1, "InterruptFlag", "ends every wait")
    back = p.box(2, 1, "roll_back", "after step k or k + 1")
    p.chain(lost, interrupt, back)
    report = p.box(3, 0, "ControlChannel", "reports the rank's step", mark=True)
    p.arrow(last, report)
    p.boxes[(3, 1)] = (*p.place(3, 1), BOX_WIDTH)
    second = p.box(3, 1, "ArbiterService", "collects the reports", mark=True)
    p.chain(back, second)
    p.arrow(report, second)
    p.lane(2, "the next generation")
    form = p.box(3, 2, "Arbiter", "members and ranks", mark=True)
    elastic = p.box(2, 2, "Elastic", "forms the new group")
    state = p.box(1, 2, "state_replica.hpp", "state of the authority")
    reform = p.box(0, 2, "reform", "trainer takes the state")
    p.arrow(second, form)
    p.chain(form, elastic, state, reform)
    start = p.box(0, 3, "BatchSource", "position, new shares")
    p.arrow(reform, start)
    step = p.box(1, 3, "Trainer", "the next step", mark=True)
    p.arrow(start, step)
    return p


PICTURES = {"batch.svg": batch, "gradient.svg": gradient, "members.svg": members}


def missing_names(sources):
    """Names of boxes that occur nowhere in the text of the sources."""
    names = {n for make in PICTURES.values() for n in make().names}
    return sorted(n for n in names if not re.search(rf"\b{re.escape(n)}\b", sources))
