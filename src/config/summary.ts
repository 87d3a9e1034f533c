// Creates the start banner, the output of `print-config`, and the list of settings that
// `GET /admin/config` returns. Must never show a secret.

import { resolve } from "node:path";
import { credentialRule } from "../api/protected-mode.ts";
import { formatAddress, listensBeyondLoopback, parseAddress } from "../lib/address.ts";
import { parseRedisUrl } from "../redis/address.ts";
import { type OptionSchema, unitOf } from "./keys.ts";
import type { SourcedConfig } from "./load.ts";
import { CONFIG_KEYS, type Config, plainSchema } from "./schema.ts";

interface Ports {
  readonly apiPort: number;
  readonly clientPort: number;
  readonly wkprotoPort?: number;
}

export function startSummary(config: Config, ports: Ports, version: string): string {
  const { api, client } = config;
  const apiUrl = url("http", api, ports.apiPort);
  const demo = demoAddress(config, ports.apiPort);
  return [
    `Jindou ${version} is ready  (process ${process.pid})`,
    `  API      ${apiUrl}  (${apiAccess(config)})`,
    `  clients  ${url("ws", client, ports.clientPort)}  (${clientAccess(config)})`,
    ...wkprotoLines(config, ports),
    ...(demo === undefined ? [] : [`  demo     ${demo}`]),
    ...(api.console === "on" ? [`  console  ${apiUrl}/console/`] : []),
    `  metrics  ${apiUrl}/metrics`,
    `  data     ${dataPlace(config)}`,
    "",
  ].join("\n");
}

function wkprotoLines({ protocol }: Config, { wkprotoPort: port }: Ports): readonly string[] {
  if (port === undefined) return [];
  const host = parseAddress(protocol.wkproto.listen)?.host ?? "";
  const security = protocol.wkproto.tls.certFile === "" ? "" : ", TLS";
  return [`  WKProto  ${formatAddress({ host, port })}  (TCP${security})`];
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
    return `Redis, keys ${redis.prefix}:…  (shared with the other nodes of the cluster)`;
  const event = store.durability === "disk" ? "a power failure" : "a crash of the process";
  return `${resolve(store.path)}  (acknowledged data survives ${event})`;
}

function apiAccess(config: Config): string {
  return needsCredential(config)
    ? "credential required"
    : "this machine only, no credential needed";
}

function needsCredential({ api, auth }: Config): boolean {
  return credentialRule({
    listensBeyondLoopback: listensBeyondLoopback([api.listen, api.compatListen]),
    staticToken: api.token,
    authApi: auth.api,
  });
}

/** Returns the URL of the demo, or `undefined` if it is not served. */
export function demoAddress(config: Config, apiPort: number): string | undefined {
  return needsCredential(config) ? undefined : `${url("http", config.api, apiPort)}/demo/`;
}

const CLIENT_ACCESS = {
  token: "token from POST /user/token",
  jwt: "JWT from your issuer",
  "token+jwt": "token from POST /user/token, or JWT from your issuer",
  none: "no authentication: a client connects as any user it names",
} as const satisfies Record<Config["auth"]["clients"], string>;

function clientAccess({ auth }: Config): string {
  return CLIENT_ACCESS[auth.clients];
}

/**
 * A setting in the form in which the operator sees it. `value` is absent if the value is secret,
 * except for `redis.url`, which is shown without its user name and password.
 */
interface ShownSetting {
  readonly key: string;
  readonly value?: unknown;
  /** True if the value is not the default. */
  readonly isSet: boolean;
  readonly source: string;
  readonly description: string;
  readonly unit: string | undefined;
}

/** Returns all settings, without secret values and without the user names and passwords in URLs. */
export function shownSettings({ config, places }: SourcedConfig): readonly ShownSetting[] {
  const masked = maskSecrets(config);
  return CONFIG_KEYS.map((key) => {
    const { name, path, schema } = key;
    const value = name === "redis.url" ? redisHosts(config) : withoutUsers(valueAt(masked, path));
    return {
      key: name,
      ...(schema.secret === true && name !== "redis.url" ? {} : { value }),
      isSet: JSON.stringify(valueAt(config, path)) !== JSON.stringify(schema.default),
      source: originOf(places.get(name)),
      description: schema.description ?? "",
      unit: unitOf(key),
    };
  });
}

/** Returns `redis.url` without its user name and password, or "" if it is not set. */
function redisHosts({ redis }: Config): string {
  const address = parseRedisUrl(redis.url);
  if (redis.url === "" || typeof address === "string") return "";
  const { hosts, database, tls } = address;
  const scheme = tls ? "rediss" : "redis";
  return hosts
    .map(({ host, port }) => `${scheme}://${formatAddress({ host, port })}/${database}`)
    .join(",");
}

/** Removes user names and passwords from the URLs in a value. */
function withoutUsers(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutUsers);
  if (typeof value !== "string" || !value.includes("://") || !URL.canParse(value)) return value;
  const url = new URL(value);
  if (url.username === "" && url.password === "") return value;
  url.username = "";
  url.password = "";
  return url.href;
}

function valueAt(config: unknown, path: readonly string[]): unknown {
  return path.reduce(
    (section: unknown, part) => (section as Readonly<Record<string, unknown>>)[part],
    config,
  );
}

/** Text that replaces a secret. An empty secret is shown as empty. */
export const MASK = "******";

/** Returns all secrets and the password in `redis.url`, each unchanged and also URL-encoded. */
export function secretsOf(config: Config): readonly string[] {
  const secrets = collectSecrets(config, plainSchema);
  const address = parseRedisUrl(config.redis.url);
  if (typeof address === "object") secrets.push(address.password);
  const forms = secrets.flatMap((secret) => [secret, encodeURIComponent(secret)]);
  return [...new Set(forms)].filter((secret) => secret !== "");
}

function collectSecrets(value: unknown, schema: OptionSchema): string[] {
  if (schema.secret === true) return [String(value)];
  const { items, properties } = schema;
  if (Array.isArray(value))
    return value.flatMap((item) => (items === undefined ? [] : collectSecrets(item, items)));
  return Object.entries(properties ?? {}).flatMap(([name, child]) =>
    collectSecrets((value as Record<string, unknown>)[name] ?? "", child),
  );
}

export function configJson(config: Config): string {
  return `${JSON.stringify(maskSecrets(config), undefined, 2)}\n`;
}

/** Returns a document with the value and the source of each key. Secrets are masked. */
export function sourcesJson(sourced: SourcedConfig): string {
  const entries = sourcedValues(sourced).map(({ name, ...entry }) => [name, entry]);
  return `${JSON.stringify(Object.fromEntries(entries), undefined, 2)}\n`;
}

/** Returns one line for each key, with its value and its source. Secrets are masked. */
export function configText(sourced: SourcedConfig): string {
  const lines = sourcedValues(sourced).map(
    ({ name, value, source }) => `${name} = ${JSON.stringify(value)}  # ${source}\n`,
  );
  return lines.join("");
}

function sourcedValues({ config, places }: SourcedConfig) {
  const masked = maskSecrets(config);
  return CONFIG_KEYS.map(({ name, path }) => ({
    name,
    value: valueAt(masked, path),
    source: originOf(places.get(name)),
  }));
}

function originOf(places: readonly string[] = []): string {
  const [place, ...overridden] = places;
  if (place === undefined) return "default";
  return overridden.length === 0 ? place : `${place}, which overrides ${overridden.join(" and ")}`;
}

function maskSecrets(config: Config): unknown {
  return mask(config, plainSchema);
}

function mask(value: unknown, schema: OptionSchema): unknown {
  if (schema.secret === true) return value === "" ? "" : MASK;
  const { items, properties } = schema;
  if (Array.isArray(value) && items !== undefined) return value.map((item) => mask(item, items));
  if (properties === undefined) return value;
  return Object.fromEntries(
    Object.entries(value as Record<string, unknown>).map(([name, child]) => [
      name,
      mask(child, properties[name] ?? {}),
    ]),
  );
}
