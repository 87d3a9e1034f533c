// Defines the layout of the data folder, and checks a folder before a store is opened in it. The
// folder must not contain files of other programs, and must not have lost its database [decisions:
// A used folder]. The target of a symbolic link is treated as if it were in the folder.

import { lstatSync, readdirSync, readlinkSync, type Stats, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";
import { HEARTBEAT_FILE } from "./heartbeat.ts";
import { makeFolder, makeInnerFolder } from "./private-files.ts";
import { isSegmentName } from "./segment.ts";

export const WAL_FOLDER = "journal";
export const DATABASE_FOLDER = "lmdb";
export const DATA_FILE = "data.mdb";
export const LOCK_FILE = "lock.mdb";
export const FOLDERS = [WAL_FOLDER, DATABASE_FOLDER];
const FORMER = /^old-\d{8}T\d{9}Z$/;

/**
 * Throws `unavailable` if a store must not be opened in the folder. A folder that does not exist is
 * accepted.
 */
export function assertUsable(path: string): void {
  assertKinds(path);
  if (hasDatabase(path)) return;
  if (isUsed(path)) {
    const file = join(path, DATABASE_FOLDER, DATA_FILE);
    const fault = statsOf(file) === undefined ? "missing" : "empty";
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} was in use before, but its database ${file} is ${fault}. Restore the folder from a backup, mount the right volume, or begin a new store with the command jindou start --new-store.`,
    });
  }
  const foreign = foreignFile(path);
  if (foreign !== undefined)
    throw new BrokerError("unavailable", {
      message: `The folder ${path} contains files of another program, for example ${foreign}. Set store.path to a new or empty folder.`,
    });
}

/**
 * Throws `unavailable` if the data folder or one of its subfolders is not a folder, or if one of
 * its files is a folder or a special file.
 */
export function assertKinds(path: string): void {
  existingFolder(path);
  for (const name of FOLDERS) folderAt(join(path, name));
  const segments = namesIn(join(path, WAL_FOLDER)).filter(isSegmentName);
  const files = [
    HEARTBEAT_FILE,
    ...[DATA_FILE, LOCK_FILE].map((name) => join(DATABASE_FOLDER, name)),
    ...segments.map((name) => join(WAL_FOLDER, name)),
  ];
  for (const name of files) fileAt(join(path, name));
}

/** Returns the folder itself, or the nearest parent folder that exists. */
export function existingFolder(path: string): string {
  for (let folder = resolve(path); ; folder = dirname(folder))
    if (folderAt(folder) !== undefined) return folder; // the root always exists
}

function folderAt(path: string): Stats | undefined {
  const stats = targetOf(path);
  if (stats === undefined || stats.isDirectory()) return stats;
  throw new BrokerError("unavailable", {
    message: `${path} is not a folder. Move it away, or set a different store.path.`,
  });
}

/**
 * Returns a file's stats, or `undefined` if it does not exist. Throws `unavailable` if it is not a
 * regular file, because opening a named pipe would block the process.
 */
export function fileAt(path: string): Stats | undefined {
  const stats = targetOf(path);
  if (stats === undefined || stats.isFile()) return stats;
  throw new BrokerError("unavailable", {
    message: `The file ${path} cannot be opened: it is not a regular file. Move it away, or restore the data folder from a backup.`,
  });
}

function targetOf(path: string): Stats | undefined {
  const stats = statsOf(path);
  if (stats !== undefined || !isLink(path)) return stats;
  throw new BrokerError("unavailable", {
    message: `${path} is a broken symbolic link (its target is ${readlinkSync(path)}). Mount or create the target, or remove the link.`,
  });
}

function isLink(path: string): boolean {
  try {
    return lstatSync(path).isSymbolicLink();
  } catch {
    return false;
  }
}

export function damagedDatabase(path: string, fault: string): BrokerError {
  const file = join(path, DATABASE_FOLDER, DATA_FILE);
  return new BrokerError("internal", {
    message: `The database ${file} is damaged: ${fault}. Restore the data folder from a backup. To begin a new store instead, move the folder away.`,
  });
}

export function createFolders(path: string): void {
  makeFolder(path);
  for (const name of FOLDERS) makeInnerFolder(join(path, name));
}

/** Returns true if a store has been opened in the folder before. */
export function isUsed(path: string): boolean {
  if (statsOf(join(path, HEARTBEAT_FILE)) !== undefined) return true;
  return namesIn(join(path, WAL_FOLDER)).some(isSegmentName);
}

export function hasDatabase(path: string): boolean {
  const stats = statsOf(join(path, DATABASE_FOLDER, DATA_FILE));
  return stats !== undefined && (!stats.isFile() || stats.size > 0);
}

function foreignFile(path: string): string | undefined {
  const own = namesIn(path).filter((name) => FOLDERS.includes(name));
  const inner = own.flatMap((folder) =>
    namesIn(join(path, folder))
      .filter((name) => name !== DATA_FILE && name !== LOCK_FILE)
      .map((name) => join(folder, name)),
  );
  const isForeign = (name: string) =>
    !FOLDERS.includes(name) && !FORMER.test(name) && name !== "lost+found" && !name.startsWith(".");
  return namesIn(path).find(isForeign) ?? inner[0];
}

function namesIn(folder: string): readonly string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return [];
    throw error;
  }
}

function statsOf(file: string): Stats | undefined {
  try {
    return statSync(file);
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (["ENOENT", "ENOTDIR", "ELOOP"].includes(code)) return undefined;
    throw error;
  }
}
