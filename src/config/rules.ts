// Checks rules that the schema of a single key cannot express, such as the form of addresses and
// origins, and finds contradictions between keys. Contains only pure functions.

import { isIP } from "node:net";
import { refusalOfOpenClients, refusalToStart } from "../api/protected-mode.ts";
import { acceptsJwts } from "../auth/options.ts";
import { PATTERN_FORM, parseChannelPattern } from "../broker/channel-patterns.ts";
import {
  type Address,
  isLoopback,
  listensBeyondLoopback,
  parseAddress,
  sameAddress,
} from "../lib/address.ts";
import { parseNetwork } from "../lib/network-list.ts";
import { MAX_SECRET_BYTES, MIN_SECRET_BYTES, signingKeyOf } from "../outgoing/signature.ts";
import { parseRedisUrl } from "../redis/address.ts";
import { parseUrl } from "../webhooks/addresses.ts";
import { NO_ORIGIN, originProblem } from "./origins.ts";
import type { Config } from "./schema.ts";
import { shown } from "./setting-text.ts";

/** Maximum number of bytes that the ids, the header and the framing add to a frame's payload. */
const FRAME_OVERHEAD_BYTES = 4096;

/** Returns one sentence for each violated rule. Each key must already conform to its schema. */
export function inconsistencies(config: Config): readonly string[] {
  return [
    ...address("api.listen", config.api.listen),
    ...(config.api.compatListen === "" ? [] : address("api.compatListen", config.api.compatListen)),
    ...address("client.listen", config.client.listen),
    ...wkprotoListener(config),
    ...compatListener(config),
    ...tlsPair("api", config.api.tls),
    ...tlsPair("client", config.client.tls),
    ...tlsPair("protocol.wkproto", config.protocol.wkproto.tls),
    ...sharedListener(config),
    ...unprotected(config),
    ...openClients(config),
    ...jwt(config.auth),
    ...hooks(config.hooks),
    ...sizes(config),
    ...redis(config.redis),
    ...migration(config),
    ...accounts(config.managers),
    ...origins(config.client.allowedOrigins, config.auth.clients),
    ...proxies("api.trustedProxies", config.api.trustedProxies),
    ...proxies("webhooks.allowNetworks", config.webhooks.allowNetworks),
    ...webhookProblems(config.webhooks.endpoints),
    ...proxies("client.trustedProxies", config.client.trustedProxies),
    ...proxies("protocol.wkproto.trustedProxies", config.protocol.wkproto.trustedProxies),
  ];
}

function address(name: string, text: string): readonly string[] {
  const parsed = parseAddress(text);
  if (parsed !== undefined && isPlausible(parsed)) return [];
  return [
    `${name} must be host:port, for example 127.0.0.1:5001, [::1]:5001 or :5200, not ${JSON.stringify(text)}.`,
  ];
}

function isPlausible({ host }: Address): boolean {
  const isLiteral = /^[\d.]+$/.test(host) || host.includes(":");
  return !isLiteral || isIP(host) !== 0;
}

function tlsPair(section: string, tls: Config["api"]["tls"]): readonly string[] {
  const { certFile, keyFile, caFile, passphrase } = tls;
  const name = `${section}.tls`;
  if ((certFile === "") !== (keyFile === ""))
    return [`${name}.certFile and ${name}.keyFile must be set together.`];
  if (certFile === "" && (caFile !== "" || passphrase !== ""))
    return [
      `${name}.caFile and ${name}.passphrase have no effect without TLS. Set ${name}.certFile and ${name}.keyFile as well.`,
    ];
  return [];
}

function compatListener({ api, client }: Config): readonly string[] {
  const compat = parseAddress(api.compatListen);
  if (compat === undefined) return [];
  const sections = { api, client };
  return (["api", "client"] as const).flatMap((name) => {
    const other = parseAddress(sections[name].listen);
    if (other === undefined || !sameAddress(compat, other)) return [];
    return [`api.compatListen must not be the same address as ${name}.listen.`];
  });
}

function wkprotoListener({ api, client, auth, protocol }: Config): readonly string[] {
  const { listen, allowUnauthenticated } = protocol.wkproto;
  const name = "protocol.wkproto.listen";
  if (listen === "") return [];
  const own = parseAddress(listen);
  if (own === undefined) return address(name, listen);
  const others = {
    "api.listen": api.listen,
    "api.compatListen": api.compatListen,
    "client.listen": client.listen,
  };
  const problems = Object.entries(others).flatMap(([key, text]) => {
    const other = parseAddress(text);
    if (other === undefined || !sameAddress(own, other)) return [];
    return [`${name} must not be the same address as ${key}.`];
  });
  if (auth.clients === "none" && !isLoopback(own.host) && !allowUnauthenticated)
    problems.push(
      `auth.clients is none, so any program that reaches ${name} could connect as any user, and no check of the Origin header protects that port. Set auth.clients to token, set ${name} (JINDOU_PROTOCOL_WKPROTO_LISTEN) to 127.0.0.1:5100, or set protocol.wkproto.allowUnauthenticated to true.`,
    );
  return [...address(name, listen), ...problems];
}

function sharedListener({ api, client }: Config): readonly string[] {
  const addresses = [parseAddress(api.listen), parseAddress(client.listen)];
  const [apiAddress, clientAddress] = addresses;
  if (apiAddress === undefined || clientAddress === undefined) return [];
  if (!sameAddress(apiAddress, clientAddress)) return [];
  const differing = [
    ...(isEqual(api.tls, client.tls) ? [] : ["tls"]),
    ...(hasSameEntries(api.trustedProxies, client.trustedProxies) ? [] : ["trustedProxies"]),
  ];
  return differing.map(
    (key) =>
      `api.listen and client.listen are the same address, so api.${key} and client.${key} must be equal.`,
  );
}

function unprotected({ api, admin, managers }: Config): readonly string[] {
  if (parseAddress(api.listen) === undefined) return [];
  const refusal = refusalToStart({
    listensBeyondLoopback: listensBeyondLoopback([api.listen, api.compatListen]),
    staticToken: api.token,
    adminPassword: admin.password,
    managers: managers.length,
  });
  return refusal === undefined ? [] : [refusal];
}

function openClients({ auth, client }: Config): readonly string[] {
  const listen = parseAddress(client.listen);
  if (listen === undefined) return [];
  const refusal = refusalOfOpenClients({
    listensBeyondLoopback: !isLoopback(listen.host),
    authClients: auth.clients,
    allowedOrigins: client.allowedOrigins,
  });
  return refusal === undefined ? [] : [refusal];
}

const KEY_SOURCES = ["secretFile", "publicKeyFile", "jwksFile", "jwksUrl"] as const;

function jwt({ clients, jwt: settings }: Config["auth"]): readonly string[] {
  const { algorithms, previousSecretFile, secretFile } = settings;
  const sources = KEY_SOURCES.filter((name) => settings[name] !== "");
  if (!acceptsJwts(clients))
    return sources.map(
      (name) => `auth.jwt.${name} has no effect unless auth.clients is jwt or token+jwt.`,
    );
  const problems: string[] = [];
  if (algorithms.length === 0)
    problems.push(
      "auth.jwt.algorithms is empty. Set it to the algorithms that your issuer signs with, for example RS256.",
    );
  if (sources.length !== 1)
    problems.push(
      `auth.jwt needs exactly one source of keys, but has ${sources.join(" and ") || "none"}. Set one of ${KEY_SOURCES.join(", ")}.`,
    );
  // A public key is not secret. If an HS algorithm used it, anybody could sign tokens.
  for (const algorithm of algorithms)
    if (sources.length === 1 && algorithm.startsWith("HS") !== (secretFile !== ""))
      problems.push(
        algorithm.startsWith("HS")
          ? `auth.jwt.algorithms contains ${algorithm}, which needs auth.jwt.secretFile instead of a public key.`
          : `auth.jwt.algorithms contains ${algorithm}, which needs a public key instead of auth.jwt.secretFile.`,
      );
  if (previousSecretFile !== "" && secretFile === "")
    problems.push("auth.jwt.previousSecretFile has no effect without auth.jwt.secretFile.");
  const { jwksFile, jwksUrl, issuer, audience } = settings;
  if (jwksUrl !== "" && !isWebUrl(jwksUrl))
    problems.push(
      `auth.jwt.jwksUrl is ${shown(jwksUrl)}, which is not a URL that begins with https:// or http:// and has no user, password or fragment.`,
    );
  if (jwksFile + jwksUrl !== "" && issuer === "" && audience === "")
    problems.push(
      "auth.jwt.issuer and auth.jwt.audience are empty, so tokens that the provider signed for another service could log in here. Set one of them, or set auth.jwt.audience to * to allow that.",
    );
  return problems;
}

function hooks({ connect, send }: Config["hooks"]): readonly string[] {
  const problems = Object.entries({ connect, send }).flatMap(
    ([name, { url, secret, staticHeaders }]) => {
      const own: string[] = [];
      if (url !== "" && !isWebUrl(url))
        own.push(
          `hooks.${name}.url is ${shown(url)}, which is not a URL that begins with https:// or http:// and has no user, password or fragment.`,
        );
      if (url !== "" && signingKeyOf(secret) === undefined)
        own.push(
          `hooks.${name}.secret must be whsec_ followed by ${MIN_SECRET_BYTES} to ${MAX_SECRET_BYTES} bytes in Base64. Create one with: echo "whsec_$(openssl rand -base64 32)".`,
        );
      const headers = staticHeaders.filter(({ name, value }) => !isHeader(name, value));
      for (const header of headers)
        own.push(
          `hooks.${name}.staticHeaders contains ${JSON.stringify(header.name)}, which cannot be set: the header is reserved, or its name or value contains characters that are not allowed.`,
        );
      return own;
    },
  );
  for (const name of connect.forwardHeaders)
    if (!isHeader(name, ""))
      problems.push(
        `hooks.connect.forwardHeaders contains ${JSON.stringify(name)}, which is not the name of a header that can be forwarded.`,
      );
  for (const text of send.channels)
    if (parseChannelPattern(text) === undefined)
      problems.push(
        `hooks.send.channels contains ${JSON.stringify(text)}, which is not valid. Write ${PATTERN_FORM}.`,
      );
  return problems;
}

/** Headers that belong to the connection, or that the node itself sets. */
const OWN_HEADERS: ReadonlySet<string> = new Set([
  ...["connection", "content-length", "content-type", "expect", "host", "keep-alive"],
  ...["te", "trailer", "transfer-encoding", "upgrade"],
  ...["webhook-id", "webhook-timestamp", "webhook-signature"],
]);

function isHeader(name: string, value: string): boolean {
  if (OWN_HEADERS.has(name.toLowerCase())) return false;
  return /^[\w!#$%&'*+.^`|~-]+$/.test(name) && /^[\t\x20-\x7e\x80-\xff]*$/.test(value);
}

function isWebUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, username, password, hash } = new URL(text);
  return /^https?:$/.test(protocol) && username + password + hash === "";
}

function isEqual(a: Config["api"]["tls"], b: Config["api"]["tls"]): boolean {
  return (
    a.certFile === b.certFile &&
    a.keyFile === b.keyFile &&
    a.caFile === b.caFile &&
    a.passphrase === b.passphrase
  );
}

function hasSameEntries(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((entry) => b.includes(entry));
}

function sizes({ messages, client, api }: Config): readonly string[] {
  const frame = messages.maxPayloadBytes + FRAME_OVERHEAD_BYTES;
  const body = Math.ceil((messages.maxPayloadBytes * 4) / 3);
  const problems: string[] = [];
  if (client.maxFrameBytes < frame)
    problems.push(
      `client.maxFrameBytes is ${client.maxFrameBytes}, but must be at least ${frame} to carry a payload of messages.maxPayloadBytes.`,
    );
  if (client.maxBufferedBytes < client.maxFrameBytes)
    problems.push(
      `client.maxBufferedBytes is ${client.maxBufferedBytes}, but must be at least client.maxFrameBytes (${client.maxFrameBytes}).`,
    );
  if (client.maxBufferedBytesPerUser < client.maxBufferedBytes)
    problems.push(
      `client.maxBufferedBytesPerUser is ${client.maxBufferedBytesPerUser}, but must be at least client.maxBufferedBytes (${client.maxBufferedBytes}).`,
    );
  if (client.maxBufferedBytesTotal < client.maxBufferedBytesPerUser)
    problems.push(
      `client.maxBufferedBytesTotal is ${client.maxBufferedBytesTotal}, but must be at least client.maxBufferedBytesPerUser (${client.maxBufferedBytesPerUser}).`,
    );
  if (api.maxBodyBytes < body + FRAME_OVERHEAD_BYTES)
    problems.push(
      `api.maxBodyBytes is ${api.maxBodyBytes}, but must be at least ${body + FRAME_OVERHEAD_BYTES} to carry a payload of messages.maxPayloadBytes in base64.`,
    );
  if (api.maxPendingBodyBytes < api.maxBodyBytes)
    problems.push(
      `api.maxPendingBodyBytes is ${api.maxPendingBodyBytes}, but must be at least api.maxBodyBytes (${api.maxBodyBytes}).`,
    );
  return problems;
}

function redis(settings: Config["redis"]): readonly string[] {
  const { url, cluster, sentinelName, sentinelPassword, caFile } = settings;
  const address = url === "" ? undefined : parseRedisUrl(url);
  const problems = typeof address === "string" ? [address] : [];
  const isCluster = sentinelName === "" && (cluster || url.includes(","));
  if (typeof address === "object" && isCluster && address.database !== 0)
    problems.push(
      `redis.url names database ${address.database}, but a Redis Cluster has only database 0. Remove the number, and keep installations apart with redis.prefix.`,
    );
  if (cluster && sentinelName !== "")
    problems.push(
      "redis.cluster and redis.sentinelName contradict each other, because Sentinels monitor a single primary. Set only one of them.",
    );
  if (sentinelPassword !== "" && sentinelName === "")
    problems.push(
      "redis.sentinelPassword has no effect without redis.sentinelName. Set redis.sentinelName as well.",
    );
  if (caFile !== "" && !(typeof address === "object" && address.tls))
    problems.push(
      "redis.caFile has no effect unless redis.url has an address that begins with rediss://.",
    );
  return problems;
}

function migration({ migrate, redis }: Config): readonly string[] {
  if (migrate.from === "" || redis.url !== "") return [];
  return ["migrate.from needs redis.url, the Redis into which the data is moved."];
}

function accounts(managers: Config["managers"]): readonly string[] {
  const names = managers.map((account) => account.username);
  const problems = managers.flatMap((account, index) =>
    (account.password === "") === (account.passwordHash === "")
      ? [`managers[${index}] needs either passwordHash or password, not both.`]
      : [],
  );
  for (const name of new Set(names.filter((n, i) => names.indexOf(n) !== i)))
    problems.push(`managers contains the username ${JSON.stringify(name)} more than once.`);
  return problems;
}

function origins(
  entries: readonly string[],
  clients: Config["auth"]["clients"],
): readonly string[] {
  const problems = entries.flatMap((entry) => {
    const problem = originProblem(entry);
    if (problem === undefined) return [];
    return [`client.allowedOrigins contains ${JSON.stringify(entry)}, ${problem}.`];
  });
  if (clients === "none" && entries.includes(NO_ORIGIN))
    problems.push(
      "client.allowedOrigins contains null, which any web page can send from a sandboxed frame, and auth.clients is none, so any page could connect as any user. Remove null, or set auth.clients to token.",
    );
  return problems;
}

function webhookProblems(endpoints: Config["webhooks"]["endpoints"]): readonly string[] {
  const ids = endpoints.map(({ id }) => id);
  const repeated = ids.filter((id, at) => ids.indexOf(id) !== at);
  return [
    ...endpoints.flatMap(({ id, url, secret, previousSecret }) => {
      const name = `webhooks.endpoints (${id})`;
      const parsed = parseUrl(url);
      return [
        ...(typeof parsed === "string" ? [`${name}: ${parsed}.`] : []),
        ...([secret, previousSecret || secret].every((text) => signingKeyOf(text) !== undefined)
          ? []
          : [`${name}: a secret must be whsec_ followed by 24 to 64 bytes in Base64.`]),
      ];
    }),
    ...repeated.map(
      (id) => `webhooks.endpoints contains the id ${JSON.stringify(id)} more than once.`,
    ),
  ];
}

function proxies(name: string, entries: readonly string[]): readonly string[] {
  return entries
    .filter((entry) => parseNetwork(entry) === undefined)
    .map(
      (entry) =>
        `${name} contains ${JSON.stringify(entry)}, which is neither an IP address like 10.0.0.5 nor a network in CIDR form like 10.0.0.0/8 or fd00::/8.`,
    );
}
