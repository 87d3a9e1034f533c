// One migration attempt. It copies the rows of the folder's tables page by page, and saves a
// watermark in Redis after each page. Then it reads the folder and Redis again and compares them.
// The next attempt resumes at the watermark, or at the beginning if the comparison found
// differences.

import { BrokerError } from "../broker/errors.ts";
import type { MoveSource } from "../store/embedded/export.ts";
import {
  bytesOf,
  type MoveContext,
  MoveCounts,
  type MoveRow,
  type MoveTarget,
  type RowCount,
} from "./facts.ts";
import { type MoveProgress, type MoveRecord, type RecordChange, StuckMoveError } from "./record.ts";
import { type MoveTable, moveTables } from "./tables.ts";

const VERIFY_STEP = "verify";
const SAVE_MS = 1000;
const MAX_NAMED = 10;
const MAX_ROWS = 500;
const MAX_BYTES = 1_048_576;

export interface CopyPorts {
  readonly source: MoveSource;
  readonly target: MoveTarget;
  readonly context: MoveContext;
  readonly record: Pick<MoveRecord, "watermark" | "differing" | "beganAtMs">;
  readonly save: (change: RecordChange) => Promise<void>;
  readonly assertGoing: () => void;
  readonly onProgress: (progress: MoveProgress) => void;
  /**
   * Called when the folder and Redis are equal, with the number of values of each kind in Redis.
   */
  readonly onCompared: (counts: readonly RowCount[]) => void;
}

/**
 * Copies all tables, then compares the folder and Redis. Throws `internal` if they differ. The
 * error is a `StuckMoveError` if they differed in the same way after the previous copy.
 */
export async function copyAll(ports: CopyPorts): Promise<void> {
  const { record, save } = ports;
  const tables = moveTables(ports.source, ports.context);
  await copy(ports, tables);
  const { differing, counts } = await compare(ports, tables);
  if (differing === "") return ports.onCompared(counts);
  await save({ watermark: undefined, rows: 0, differing });
  if (record.differing === differing) throw new StuckMoveError(differing, record.beganAtMs);
  throw new BrokerError("internal", {
    message: `The data in Redis differs from the data folder. The next attempt copies everything again. Differences: ${differing}`,
  });
}

async function copy(ports: CopyPorts, tables: readonly MoveTable[]): Promise<void> {
  const { target, record, save, onProgress } = ports;
  const { watermark: from } = record;
  let step = tables.find(({ name }) => name === from?.table)?.step;
  let done = from?.rows ?? 0;
  await eachPage(ports, pagesOf(tables, from), async ([table, rows]) => {
    await target.write(factsOf(rows));
    if (table.step !== step) done = 0;
    step = table.step;
    done += rows.length;
    const total = totalOf(tables.filter((other) => other.step === step));
    const at = rows.at(-1)?.at ?? "";
    const watermark = { table: table.name, at, rows: done };
    await save({ step, rows: done, total, watermark });
    onProgress({ step, done, total });
  });
}

/**
 * Compares the folder and Redis. `differing` describes the differences, or is "" if there are none.
 */
async function compare(
  ports: CopyPorts,
  tables: readonly MoveTable[],
): Promise<{
  readonly differing: string;
  readonly counts: readonly RowCount[];
}> {
  const { target, save, onProgress } = ports;
  const counts = new MoveCounts(target);
  const named = new Set<string>();
  let count = 0;
  const addDifferences = (differences: readonly string[]) => {
    count += differences.length;
    for (const difference of differences) if (named.size < MAX_NAMED) named.add(difference);
  };
  const [step, total] = [VERIFY_STEP, totalOf(tables)];
  let done = 0;
  let savedAtMs = Number.NEGATIVE_INFINITY;
  const advance = async (rows: number) => {
    done += rows;
    onProgress({ step, done, total });
    if (performance.now() - savedAtMs < SAVE_MS) return;
    savedAtMs = performance.now();
    await save({ step, rows: done, total });
  };
  await advance(0);
  await eachPage(ports, pagesOf(tables), async ([, rows]) => {
    const [differences] = await Promise.all([target.differing(factsOf(rows)), counts.add(rows)]);
    addDifferences(differences);
    await advance(rows.length);
  });
  addDifferences(counts.differences());
  const unnamedCount = count - named.size;
  const texts = unnamedCount > 0 ? [...named, `and ${unnamedCount} more`] : [...named];
  return { counts: counts.storedCounts(), differing: texts.join("; ") };
}

type Page = readonly [table: MoveTable, rows: readonly MoveRow[]];

async function eachPage(
  { assertGoing }: Pick<CopyPorts, "assertGoing">,
  pages: Iterable<Page>,
  handle: (page: Page) => Promise<void>,
): Promise<void> {
  let handling: Promise<void> = Promise.resolve();
  try {
    for (const page of pages) {
      await handling;
      assertGoing();
      handling = handle(page);
      handling.catch(() => undefined); // awaiting `handling` throws the error
    }
    await handling;
  } finally {
    await handling.catch(() => undefined); // no call may be in flight when the lease is released
  }
}

function* pagesOf(
  tables: readonly MoveTable[],
  watermark?: MoveRecord["watermark"],
): Generator<Page> {
  const first = tables.findIndex(({ name }) => name === watermark?.table);
  for (const table of tables.slice(Math.max(first, 0))) {
    let rows: MoveRow[] = [];
    let bytes = 0;
    for (const row of table.rows(table.name === watermark?.table ? watermark.at : "")) {
      rows.push(row);
      for (const rowFact of row.facts ?? []) bytes += bytesOf(rowFact);
      if (rows.length < MAX_ROWS && bytes < MAX_BYTES) continue;
      yield [table, rows];
      rows = [];
      bytes = 0;
    }
    if (rows.length > 0) yield [table, rows];
  }
}

function factsOf(page: readonly MoveRow[]) {
  return page.flatMap(({ facts = [] }) => facts);
}

function totalOf(tables: readonly MoveTable[]): number {
  return tables.reduce((sum, { total }) => sum + total, 0);
}
