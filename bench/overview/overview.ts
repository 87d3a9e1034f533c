// The overview, which `npm run bench` runs if no benchmark is named: compares Jindou, raw
// uWebSockets.js and the peers that are installed on this machine, with the same workloads, in one
// run of less than five minutes. Prints a table and writes bench/results/<time>/.

import { execFileSync } from "node:child_process";
import { cpus, loadavg, release, totalmem, type } from "node:os";
import { join } from "node:path";
import { type Format, jindou } from "../peers/jindou.ts";
import { PEERS } from "../peers/list.ts";
import type { Peer } from "../peers/peer.ts";
import { ROOT } from "../support/builds.ts";
import { jsonPayload } from "../support/frames.ts";
import type { Server } from "../support/servers.ts";
import type { Workbench } from "../support/workbench.ts";
import { estimate, Measurement, type MeasureOptions } from "./measure.ts";
import { picture } from "./picture.ts";
import { Progress } from "./progress.ts";
import { announcement, csv, html, markdown, terminalText } from "./report.ts";
import { type OverviewResult, type OverviewRow, resultText, writeFiles } from "./results.ts";
import { planWorks, type WorkOptions } from "./works.ts";

export interface OverviewOptions extends WorkOptions, MeasureOptions {
  /** Names of the peers. Empty means all peers that are installed on this machine. */
  readonly peers: readonly string[];
  readonly payloadBytes: number;
  readonly format: Format;
  /** Server that runs elsewhere and is measured in place of this build. */
  readonly server: Server | undefined;
  /** Number of Jindou nodes on one Redis. 0 for one node with the embedded store. */
  readonly nodes: number;
  /** True if the result is printed as JSON instead of as a table. */
  readonly isJson: boolean;
  /** The command line, for the report. */
  readonly command: string;
}

const RESULTS = join(ROOT, "bench/results");

export async function runOverview(options: OverviewOptions, workbench: Workbench): Promise<void> {
  const at = new Date();
  const loadBefore = loadavg()[0] ?? 0;
  const { peers, missing } = choosePeers(options);
  const works = planWorks(options);
  const seconds = works.reduce((sum, work) => sum + estimate(work, peers, options), 0);
  const say = (text: string) => process.stderr.write(`${text}\n`);
  const names = peers.map(({ name }) => name);
  say(announcement(names, [...works.map(({ id }) => id)], seconds));
  for (const { name, reason } of missing) say(`Not measured: ${name}. ${reason}`);

  const progress = new Progress(seconds, process.stderr);
  const payload = jsonPayload(options.payloadBytes);
  workbench.pin(true);
  const measurement = await Measurement.create({ workbench, payload }, options, progress);
  const rows: OverviewRow[] = [];
  for (const work of works) rows.push(...(await measurement.rows(work, peers)));
  progress.end();

  const result: OverviewResult = {
    at: at.toISOString(),
    command: options.command,
    commit: commitHere(),
    machine: {
      cpu: cpus()[0]?.model ?? "unknown",
      cores: cpus().length,
      memoryGiB: Math.round(totalmem() / 2 ** 30),
      node: process.version,
      system: `${type()} ${release()}`,
    },
    load: { before: loadBefore, after: loadavg()[0] ?? 0 },
    rounds: options.rounds,
    seconds: options.seconds,
    payloadBytes: options.payloadBytes,
    peers: peers.map(({ name, title, lacks }) => ({ name, title, lacks })),
    missing,
    rows,
  };
  const folder = join(RESULTS, at.toISOString().slice(0, 19).replaceAll(":", ""));
  const svg = picture(result);
  writeFiles(folder, {
    "results.json": resultText(result),
    "results.csv": csv(result),
    ...(svg !== undefined && { "picture.svg": svg }),
    "report.md": `# Jindou and its peers\n\n${svg === undefined ? "" : "![Jindou and its peers, relative to raw uWebSockets.js](picture.svg)\n\n"}${markdown(result)}`,
    "report.html": html(result, svg ?? ""),
  });
  process.stdout.write(options.isJson ? resultText(result) : terminalText(result));
  say(`Written to ${folder}`);
}

/** Returns the chosen peers that are installed, and why the other chosen peers are not measured. */
function choosePeers({ peers: chosen, ...options }: OverviewOptions): {
  readonly peers: readonly Peer[];
  readonly missing: OverviewResult["missing"];
} {
  const all = [PEERS[0], jindou(options), ...PEERS.slice(1)].filter((peer) => peer !== undefined);
  const names = all.map(({ name }) => name);
  for (const name of chosen)
    if (!names.includes(name))
      throw new Error(`There is no peer ${name}. The names are ${names.join(", ")}.`);
  const isChosen = ({ name }: { name: string }) => chosen.length === 0 || chosen.includes(name);
  const reasons = all
    .filter(isChosen)
    .map((peer) => ({ peer, name: peer.name, reason: peer.missing() }));
  return {
    peers: reasons.filter(({ reason }) => reason === undefined).map(({ peer }) => peer),
    missing: reasons.flatMap(({ name, reason }) =>
      reason === undefined ? [] : [{ name, reason }],
    ),
  };
}

function commitHere(): string {
  try {
    const git = (...args: string[]) =>
      execFileSync("git", args, { cwd: ROOT, encoding: "utf8", stdio: "pipe" }).trim();
    const changed = git("status", "--porcelain", "--untracked-files=no") === "" ? "" : "+";
    return `${git("rev-parse", "--short=9", "HEAD")}${changed}`;
  } catch {
    return "unknown";
  }
}
