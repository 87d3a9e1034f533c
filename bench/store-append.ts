// How much CPU time and memory does the embedded store need for a message, and what is the longest
// iteration of the event loop? No network is used. The baseline is LMDB alone, which resolves a
// write after its commit or, with durability `disk`, after the flush to disk. Each measurement runs
// in its own process.

import { type AppendFigures, type Setting, startAppend } from "./support/append-process.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { bundleStore } from "./support/builds.ts";
import { alternate } from "./support/rounds.ts";
import { row } from "./support/stats.ts";

const DAY_S = 86_400;
const SETTINGS: readonly Setting[] = [
  setting("64 in flight, 100 channels", { rate: 50_000 }),
  setting("1 in flight, 100 channels", { inFlight: 1, rate: 15_000 }),
  setting("64 in flight, 50,000 random channels, a third expire", {
    ...{ channels: 50_000, isRandom: true, expireS: DAY_S, rate: 30_000 },
  }),
  setting("64 in flight, 100 channels, durability disk", {
    ...{ durability: "disk", rate: 20_000 },
  }),
];

function setting(title: string, overrides: Partial<Setting>): Setting {
  return {
    ...{ title, inFlight: 64, channels: 100, isRandom: false, expireS: 0 },
    ...{ durability: "process", rate: 0, ...overrides },
  };
}

export const storeAppend: Benchmark = {
  name: "store-append",
  question: "one message through the embedded store, 150 bytes, with a client_msg_no",

  async run(bench) {
    const rows: Row[] = [];
    for (const setting of SETTINGS) rows.push(...(await measure(bench, setting)));
    return rows;
  },
};

async function measure(bench: Bench, setting: Setting): Promise<readonly Row[]> {
  const [base, ours] = bench.subjects;
  const baseline = base.kind === "raw" ? { name: "LMDB alone" } : base;
  const samples = await alternate(bench, (subject) => figuresOf(bench, subject, setting));
  const rowOf = (metric: string, unit: string, value: (figures: AppendFigures) => number): Row => {
    const sampleOf = (figures: AppendFigures): Sample => ({ value: value(figures) });
    const title = `${setting.title}: ${metric}`;
    return row(
      { title, unit },
      [baseline, ours],
      [samples[0].map(sampleOf), samples[1].map(sampleOf)],
    );
  };
  const rows = [
    rowOf("processor time of all threads", "µs/message", (f) => f.cpuUs),
    rowOf("rate", "messages/s", (f) => f.perSecond),
    rowOf("longest turn of the event loop", "ms", (f) => f.longestTurnMs),
  ];
  // LMDB alone has no memtable.
  if (base.kind === "raw") return rows;
  const heldRow = rowOf("memory before a checkpoint", "bytes/message", (f) => f.heldBytes);
  return [...rows, heldRow];
}

async function figuresOf(
  { workbench, plan }: Bench,
  subject: Subject,
  setting: Setting,
): Promise<AppendFigures> {
  const folder = workbench.folder("append");
  const child = startAppend(workbench, {
    ...{ folder, setting, messages: Math.round(setting.rate * plan.seconds) },
    heldMessages: plan.isQuick ? 1000 : 50_000,
    module: subject.kind === "raw" ? undefined : await bundleStore(subject.directory),
  });
  const figures = JSON.parse(await child.line()) as AppendFigures;
  await child.release();
  workbench.removeFolder(folder);
  return figures;
}
