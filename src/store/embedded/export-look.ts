// What tells one embedded store's folder from any other, and a look into a folder that nobody opens. No state.

import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { open } from "lmdb";
import type { SourceLook } from "../moved.ts";
import { commit, fieldsOf, type Stored, type Tables } from "./database.ts";
import { ownerOf } from "./managers.ts";

const NAME = "moveId";
const VERSION = 1;
const MAX_TABLES = 48;

/** Whether the folder `path` has data of an embedded store. */
export function hasData(path: string): boolean {
  return existsSync(databaseIn(path));
}

/** At the folder `path`, also where another process uses it; not where this one does. Undefined: there is no data. */
export async function lookInto(path: string): Promise<SourceLook | undefined> {
  if (!hasData(path)) return undefined;
  const folder = databaseIn(path);
  const env = open({ path: folder, maxDbs: MAX_TABLES, readOnly: true });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    const tokens = env.openDB<Stored, string>({ name: "tokens" });
    const rows = [...tokens.getRange({})];
    return {
      id: idIn(meta.get(NAME)),
      tokens: new Map(rows.map(({ key, value }) => [key, ownerOf(value)])),
    };
  } finally {
    await env.close();
  }
}

/** What tells this data from any other; given once. */
export async function nameOf(tables: Tables): Promise<string> {
  const known = idIn(tables.meta.get(NAME));
  if (known !== "") return known;
  const name = randomUUID();
  await commit(tables, () => void tables.meta.put(NAME, [VERSION, name]));
  return name;
}

function databaseIn(path: string): string {
  return join(path, "lmdb");
}

function idIn(stored: Stored | undefined): string {
  return stored === undefined ? "" : String(fieldsOf(stored, VERSION)[0]);
}
