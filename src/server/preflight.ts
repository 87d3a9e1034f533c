// Checks on this machine whether the configured transport driver can be loaded, the configured
// files and folders are usable, and the listen addresses are free. Changes nothing.

import { constants } from "node:fs";
import { access, readdir, readFile } from "node:fs/promises";
import { acceptsJwts } from "../auth/options.ts";
import type { Config } from "../config/schema.ts";
import { parseAddress } from "../lib/address.ts";
import { assertUsable, existingFolder } from "../store/embedded/engine/data-folder.ts";
import { chooseDriver } from "../transport/drivers.ts";
import { probeAddress, readTls } from "../transport/listen-checks.ts";
import { reasonOf } from "./start-error.ts";

const STORE_PATH = "store.path (JINDOU_STORE_PATH)";

export async function fileProblems(config: Config): Promise<readonly string[]> {
  const { auth, redis, store, protocol } = config;
  const problems = await Promise.all([
    tlsProblem("api.tls (JINDOU_API_TLS_…)", config.api.tls),
    tlsProblem("client.tls (JINDOU_CLIENT_TLS_…)", config.client.tls),
    tlsProblem("protocol.wkproto.tls (JINDOU_PROTOCOL_WKPROTO_TLS_…)", protocol.wkproto.tls),
    acceptsJwts(auth.clients) ? keyProblem(auth.jwt) : undefined,
    redis.caFile === ""
      ? undefined
      : problemOf("redis.caFile (JINDOU_REDIS_CA_FILE)", () => readFile(redis.caFile)),
    redis.url === ""
      ? problemOf(STORE_PATH, async () => access(existingFolder(store.path), constants.W_OK))
      : undefined,
  ]);
  return problems.filter((problem) => problem !== undefined);
}

interface MachineReport {
  readonly problems: readonly string[];
  /** Findings that do not prevent a start, or that a node that is already running may cause. */
  readonly warnings: readonly string[];
}

/** Checks the machine. Listens on each configured address for a moment. */
export async function checkMachine(config: Config): Promise<MachineReport> {
  const problems: string[] = [];
  const warnings: string[] = [];
  try {
    const { warning } = await chooseDriver(config.transport);
    if (warning !== undefined) warnings.push(warning);
  } catch (error) {
    problems.push(`${reasonOf(error)}.`);
  }
  problems.push(...(await fileProblems(config)));
  const { path } = config.store;
  if (config.redis.url === "" && problems.length === 0) {
    const folderProblem = await problemOf(STORE_PATH, async () => assertUsable(path));
    if (folderProblem !== undefined) problems.push(folderProblem);
  }
  const { from } = config.migrate;
  const folderProblem =
    from === ""
      ? undefined
      : await problemOf("migrate.from (JINDOU_MIGRATE_FROM)", () => readdir(from));
  if (folderProblem !== undefined) warnings.push(folderProblem);
  const { api, client, protocol } = config;
  for (const [name, listen] of [
    ["api.listen (JINDOU_API_LISTEN)", api.listen],
    ["api.compatListen (JINDOU_API_COMPAT_LISTEN)", api.compatListen],
    ["client.listen (JINDOU_CLIENT_LISTEN)", client.listen],
    ["protocol.wkproto.listen (JINDOU_PROTOCOL_WKPROTO_LISTEN)", protocol.wkproto.listen],
  ] as const) {
    const address = parseAddress(listen);
    if (address === undefined) continue; // the setting is empty; the configuration is valid
    const refusal = await probeAddress(address.host, address.port);
    if (refusal === undefined) continue;
    const sentence = `${name}: cannot listen on ${listen}: ${refusal.reason}.`;
    (refusal.code === "EADDRINUSE" ? warnings : problems).push(sentence);
  }
  return { problems, warnings };
}

async function tlsProblem(
  name: string,
  { certFile, keyFile, caFile, passphrase }: Config["api"]["tls"],
): Promise<string | undefined> {
  if (certFile === "") return undefined;
  return problemOf(name, () =>
    readTls({
      certFile,
      keyFile,
      caFile: caFile || undefined,
      passphrase: passphrase || undefined,
    }),
  );
}

async function keyProblem(settings: Config["auth"]["jwt"]): Promise<string | undefined> {
  const { readKeys } = await import("../auth/jwt.ts");
  return readKeys(settings).then(
    () => undefined,
    (error: unknown) => `${reasonOf(error)}.`,
  );
}

async function problemOf(name: string, check: () => Promise<unknown>): Promise<string | undefined> {
  try {
    await check();
    return undefined;
  } catch (error) {
    return `${name}: ${reasonOf(error)}.`;
  }
}
