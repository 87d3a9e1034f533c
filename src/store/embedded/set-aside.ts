// Moves the files of a former store whose database is lost to a subfolder of the data folder, so
// that `jindou start --new-store` can begin a new store [decisions: A used folder].

import { existsSync, renameSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import {
  assertKinds,
  DATA_FILE,
  DATABASE_FOLDER,
  FOLDERS,
  hasDatabase,
  isUsed,
} from "./engine/data-folder.ts";
import { SILENCE_MS } from "./engine/folder-lock.ts";
import { HEARTBEAT_FILE, Heartbeat } from "./engine/heartbeat.ts";
import { makeInnerFolder } from "./engine/private-files.ts";

/**
 * Moves the remaining files of a former store to the folder `old-<time>` in the data folder, and
 * returns the path of that folder. Returns `undefined` if the data folder has not been used before.
 * Throws `unavailable` if the database exists or another process uses the data folder.
 */
export async function setAside(
  path: string,
  nowMs: number,
  signal?: AbortSignal,
): Promise<string | undefined> {
  assertKinds(path);
  const file = join(path, DATABASE_FOLDER, DATA_FILE);
  if (hasDatabase(path))
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} has a database, so --new-store is rejected. Start without --new-store to use the database ${file}, or move the folder away to begin a new store.`,
    });
  if (!isUsed(path)) return undefined;
  const heartbeat = new Heartbeat(path, "");
  const text = heartbeat.read();
  const mayBeInUse = text !== "" && !heartbeat.isStopped;
  if (mayBeInUse && !(await heartbeat.stays(text, SILENCE_MS, signal)))
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} is in use by another process. Stop that process, or set a different store.path.`,
    });
  const target = join(path, `old-${new Date(nowMs).toISOString().replace(/[-:.]/g, "")}`);
  makeInnerFolder(target);
  for (const name of [...FOLDERS, HEARTBEAT_FILE])
    if (existsSync(join(path, name))) renameSync(join(path, name), join(target, name));
  return target;
}
