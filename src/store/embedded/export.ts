// An embedded store's folder as the source of a move. It is opened as a node opens it: one process at a time, the journal brought into the database
// first. Nothing else of it is changed but a name that tells it apart. State: the open store.

import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";
import type { MoveSource } from "../moved.ts";
import { readCheckpointState } from "./checkpoint-state.ts";
import { commit, fieldsOf, type Stored, type Tables } from "./database.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import { openEngine } from "./engine.ts";
import { rowsOfStep, totalOf } from "./export-steps.ts";

const NAME = "moveId";
const VERSION = 1;
const MAX_TABLES = 48;
const NEVER_MS = 2 ** 31 - 1;

/**
 * Opens the folder `path`. Throws `unavailable` with a sentence when there is no data, another process uses it or it cannot be written, `internal`
 * when it cannot be read.
 */
export async function openMoveSource(
  options: Omit<
    EmbeddedOptions,
    "publisher" | "durability" | "retentionS" | "maxChannelMessages"
  >,
): Promise<MoveSource> {
  if (!existsSync(join(options.path, "lmdb")))
    throw new BrokerError("unavailable", {
      message: `There is no data of an embedded store in ${options.path}; migrate.from is what store.path was`,
    });
  const engine = await openEngine({
    ...options,
    ...{ durability: "disk", retentionS: 0, maxChannelMessages: 0 },
    sweepIntervalMs: NEVER_MS,
    publisher: { publish() {} }, // nothing happens while it is open
  });
  try {
    return await sourceOf(engine.tables, () => engine.close());
  } catch (error) {
    await engine.close();
    throw error;
  }
}

/**
 * The id that the source of a move from the folder `path` has or had; "": nothing was ever moved from it, undefined: there is no data. Looks only, also
 * where another process uses the folder.
 */
export async function moveIdIn(path: string): Promise<string | undefined> {
  const folder = join(path, "lmdb");
  if (!existsSync(folder)) return undefined;
  const env = open({ path: folder, maxDbs: MAX_TABLES, readOnly: true });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    return idIn(meta.get(NAME));
  } finally {
    await env.close();
  }
}

function idIn(stored: Stored | undefined): string {
  return stored === undefined ? "" : String(fieldsOf(stored, VERSION)[0]);
}

async function sourceOf(
  tables: Tables,
  shut: () => Promise<void>,
): Promise<MoveSource> {
  const id = await nameOf(tables);
  let closing: Promise<void> | undefined;
  return {
    id,
    lastMessageId: readCheckpointState(tables)?.lastMessageId ?? 0,
    total: (step) => totalOf(tables, step),
    rows: (step, place) => rowsOfStep(tables, step, place),
    close() {
      closing ??= shut();
      return closing;
    },
  };
}

/** What tells this data from any other; given once. */
async function nameOf(tables: Tables): Promise<string> {
  const known = idIn(tables.meta.get(NAME));
  if (known !== "") return known;
  const name = randomUUID();
  await commit(tables, () => void tables.meta.put(NAME, [VERSION, name]));
  return name;
}
