// What a configuration amounts to, in a few lines for a human at a terminal. Pure; shows no secret.

import { resolve } from "node:path";
import { credentialRule } from "../api/protected-mode.ts";
import { formatAddress, isLoopback, parseAddress } from "../lib/address.ts";
import type { Config } from "./schema.ts";

/** The ports the listeners really got. */
export interface Ports {
  readonly apiPort: number;
  readonly clientPort: number;
}

/** The start banner: addresses, who may call, where data and metrics are. */
export function startSummary(
  config: Config,
  ports: Ports,
  version: string,
): string {
  const { api, client } = config;
  const apiUrl = url("http", api, ports.apiPort);
  return [
    `Jindou ${version} is ready`,
    `  API      ${apiUrl}  (${apiAccess(config)})`,
    `  clients  ${url("ws", client, ports.clientPort)}  (${clientAccess(config)})`,
    `  metrics  ${apiUrl}/metrics`,
    `  data     ${dataPlace(config)}`,
    "",
  ].join("\n");
}

function url(
  scheme: "http" | "ws",
  section: Config["api"] | Config["client"],
  port: number,
): string {
  const host = parseAddress(section.listen)?.host ?? "";
  const secure = section.tls.certFile === "" ? "" : "s";
  return `${scheme}${secure}://${formatAddress({ host, port })}`;
}

function dataPlace({ store, redis }: Config): string {
  if (redis.url !== "")
    return `Redis, keys ${redis.prefix}:…  (one of the nodes that share it)`;
  const survives = store.durability === "disk" ? "machine" : "process";
  return `${resolve(store.path)}  (survives the death of the ${survives})`;
}

function apiAccess({ api, auth }: Config): string {
  const listensBeyondLoopback = !isLoopback(
    parseAddress(api.listen)?.host ?? "",
  );
  const isNeeded = credentialRule({
    listensBeyondLoopback,
    staticToken: api.token,
    authApi: auth.api,
  });
  return isNeeded
    ? "credential required"
    : "this machine only, no credential needed";
}

function clientAccess({ auth }: Config): string {
  return auth.clients === "token"
    ? "token from POST /user/token"
    : "no token: anyone is whom they say";
}
