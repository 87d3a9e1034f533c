// The tables of an embedded store's folder in the order in which they move. No state.

import type { MovedRow, MovePlace, MoveStep } from "../moved.ts";
import type { Tables } from "./database.ts";
import { exportLogs, LOGS } from "./export-channels.ts";
import { COMMAND_FIRSTS, exportCommandFirsts } from "./export-firsts.ts";
import { exportInboxes, INBOXES } from "./export-inboxes.ts";
import * as tablesOf from "./export-tables.ts";

/** Tables of each step by their names, in their order. */
type Exports = Readonly<Record<MoveStep, readonly (readonly [string, Rows])[]>>;
type Rows = (at: string) => Iterable<MovedRow>;

/** The rows of a step behind `place`; undefined: all. */
export function* rowsOfStep(
  tables: Tables,
  step: MoveStep,
  place?: MovePlace,
): Generator<MovedRow> {
  const exports = exportsOf(tables)[step];
  const first = exports.findIndex(([name]) => name === place?.table);
  for (const [index, [, rows]] of exports.entries()) {
    if (index < first) continue;
    yield* rows(index === first && place !== undefined ? place.at : "");
  }
}

function exportsOf(tables: Tables): Exports {
  const of =
    (rows: tablesOf.TableRows): Rows =>
    (at) =>
      rows(tables, at);
  return {
    user: [
      ["devices", of(tablesOf.exportDevices)],
      ["managers", of(tablesOf.exportPasswords)],
      ["tokens", of(tablesOf.exportTokens)],
    ],
    channel: [
      ["channels", of(tablesOf.exportChannels)],
      ["members", of(tablesOf.exportMembers)],
      ["groups", of(tablesOf.exportGroups)],
    ],
    message: [
      [LOGS, of(exportLogs)],
      ["positions", of(tablesOf.exportPositions)],
      [INBOXES, of(exportInboxes)],
      [COMMAND_FIRSTS, of(exportCommandFirsts)],
    ],
  };
}

/** Rows of a step, about. */
export function totalOf(tables: Tables, step: MoveStep): number {
  const { devices, managers, tokens, channels, members, groups } = tables;
  const { heads, log, own, dedupe, streams, positions } = tables;
  const { streamsActive, inboxes, inbox } = tables;
  const counted = {
    user: [devices, managers, tokens],
    channel: [channels, members, groups],
    message: [
      ...[heads, log, own, ...dedupe, streams, streamsActive, positions],
      ...[inboxes, inbox],
    ],
  } as const;
  let total = 0;
  for (const table of counted[step]) total += entriesOf(table);
  return total;
}

/** At once, however many they are. */
function entriesOf(table: { getStats(): object }): number {
  const { entryCount } = table.getStats() as { entryCount?: number }; // what LMDB says of every table
  return entryCount ?? 0;
}
