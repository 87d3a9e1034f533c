// Deletes the function libraries of builds that no longer run. Keeps no state.

import type { Redis } from "ioredis";
import { send } from "./client.ts";
import { isDenied } from "./errors.ts";
import type { RedisLink } from "./link.ts";

const LIBRARY_NAME = /^jindou_[0-9a-f]{8}$/;

/**
 * Deletes this program's libraries that are not in `used`. If a node of another cluster on the same
 * Redis still needs a deleted library, it loads the library again. Ignores the error if the user
 * lacks the right to list or delete libraries.
 */
export async function deleteUnusedLibraries(
  link: Pick<RedisLink, "primaries">,
  used: ReadonlySet<string>,
): Promise<void> {
  const servers = link.primaries().filter(({ status }) => status === "ready");
  await Promise.all(servers.map((server) => deleteOn(server, used)));
}

async function deleteOn(server: Redis, used: ReadonlySet<string>): Promise<void> {
  try {
    const reply = await send(server, "function", ["LIST", "LIBRARYNAME", "jindou_*"], {});
    const libraries = reply as readonly (readonly Buffer[])[]; // lists of names and values
    const names = libraries.map(([, name]) => String(name));
    for (const name of names)
      if (LIBRARY_NAME.test(name) && !used.has(name))
        await send(server, "function", ["DELETE", name], {});
  } catch (error) {
    if (!isDenied(error) && !isDeleted(error)) throw error;
  }
}

/** Returns true if the library no longer exists, because another node has already deleted it. */
function isDeleted(error: unknown): boolean {
  return error instanceof Error && error.message.includes("Library not found");
}
