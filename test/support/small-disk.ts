// A small disk for one test: a file system in a mount namespace (Linux). Only the test, and the
// processes that the test starts in the namespace, can see it. A process of the test keeps the
// namespace alive, so the disk survives the death of a broker.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, ftruncateSync, openSync, rmSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Test } from "tap";
import { tempFolder } from "./broker.ts";
import { tieToParent } from "./child.ts";

const MIB = 1024 * 1024;
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FILLER = "filler";

export interface SmallDisk {
  /** Path of the disk, as the processes in the namespace see it. */
  readonly path: string;
  /** The same folder, as this process sees it. */
  readonly hostPath: string;
  /** Words to put in front of a command, so that the command starts in the namespace. */
  readonly prefix: readonly string[];
  /** Returns the number of free bytes on the disk. */
  freeBytes(): number;
  /** Fills the disk with a file. `leftBytes` bytes stay free. */
  fill(leftBytes?: number): void;
  /** Removes the file that fills the disk. */
  free(): void;
}

/**
 * Mounts a tmpfs of `sizeMib` MiB, or an ext4 file system in a file. Throws if this machine does
 * not allow it.
 */
export async function mountSmallDisk(
  t: Test,
  sizeMib: number,
  kind: "tmpfs" | "ext4" = "tmpfs",
): Promise<SmallDisk> {
  const folder = await tempFolder(t);
  const path = join(folder, "disk");
  const image = join(folder, "image");
  const mount =
    kind === "tmpfs"
      ? `mount -t tmpfs -o size=${sizeMib}m tmpfs ${path}`
      : `truncate -s ${sizeMib}M ${image} && mkfs.ext4 -q -m 0 ${image} && mount -o loop ${image} ${path}`;
  const script = `mkdir ${path} && ${mount} && echo mounted && exec sleep infinity`;
  const user = process.getuid?.() === 0 ? [] : ["--user", "--map-root-user"];
  const holder = spawn(
    ...tieToParent("unshare", [...user, "--mount", "--propagation=private", "sh", "-ec", script]),
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  t.teardown(() => holder.kill("SIGKILL"));
  const mounted = once(holder.stdout ?? holder, "data");
  const ended = once(holder, "exit").then(() => {
    throw new Error(`a ${kind} of ${sizeMib} MiB cannot be mounted in a namespace here`);
  });
  await Promise.race([mounted, ended]);
  ended.catch(() => undefined); // the process is killed at the end of the test

  const outside = `/proc/${holder.pid}/root${path}`;
  const filler = join(outside, FILLER);
  const freeBytes = () => {
    const { bavail, bsize } = statfsSync(outside);
    return bavail * bsize;
  };
  return {
    path,
    hostPath: outside,
    prefix: ["nsenter", `--mount=/proc/${holder.pid}/ns/mnt`, `--wd=${ROOT}`, "--"],
    freeBytes,
    fill(leftBytes = 0) {
      const fd = openSync(filler, "a");
      try {
        for (;;) {
          const free = freeBytes() - leftBytes;
          if (free <= 0) return;
          if (writeSync(fd, Buffer.alloc(Math.min(free, MIB))) === 0) return;
        }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
      } finally {
        closeSync(fd);
      }
    },
    free() {
      const fd = openSync(filler, "a");
      ftruncateSync(fd, 0);
      closeSync(fd);
      rmSync(filler, { force: true });
    },
  };
}
