// The control plane in-process: real endpoint and managers over small use cases that note what they
// were asked and answer as told. `inject` also holds every reply to the OpenAPI document: its
// status is documented, its body fits the documented schema.

import { scryptSync } from "node:crypto";
import pino from "pino";
import type { LocalConnection } from "../../src/api/connections.ts";
import { type ApiPorts, type ApiSettings, createHttpEndpoint } from "../../src/api/endpoint.ts";
import type { ChannelState, Page } from "../../src/broker/channels.ts";
import type { AccountConfig } from "../../src/broker/manager-accounts.ts";
import type { ManagersPorts } from "../../src/broker/managers.ts";
import type { HistoryPage, SendResult } from "../../src/broker/messages.ts";
import type {
  Conversation,
  Device,
  InboxCommand,
  Message,
  Presence,
  SessionRecord,
  StreamState,
} from "../../src/broker/model.ts";
import type { NodeInfo } from "../../src/broker/ports.ts";
import type { HttpEndpoint, HttpReply, HttpRequest } from "../../src/transport/types.ts";
import { type TestManagers, testManagers } from "../broker/manager-store.ts";
import { ModelStream } from "../broker/stream-model.ts";
import { holdToDocument, holdToHeaders, type OpenApi } from "./document.ts";

export const SETTINGS: ApiSettings = {
  requiresCredential: false,
  staticToken: "",
  maxBodyBytes: 1_048_576,
  maxSubscribersPerCall: 10_000,
  dialect: "jindou",
  version: "1.2.3",
};

/** The calls on the lists of a channel, behind `/channel/`. */
export const LIST_CALLS = ["blacklist", "whitelist"].flatMap((list) =>
  ["add", "set", "remove", "remove_all"].map((name) => `${list}_${name}`),
);

/** What the use cases behind the endpoint were asked, and what they will answer. */
export interface Backstage {
  readonly asked: { readonly call: string; readonly args: unknown[] }[];
  /** The next calls throw this. */
  thrown: unknown;
  presence: readonly Presence[];
  /** Those of every user that is asked about. */
  sessions: readonly SessionRecord[];
  devices: readonly Device[];
  /** Of this node. */
  connections: Iterable<LocalConnection>;
  sent: SendResult;
  page: HistoryPage;
  inbox: readonly InboxCommand[];
  /** What became of a posted event's stream. */
  state: StreamState | undefined;
  /** The stream there is to read. */
  stream: ModelStream;
  conversations: readonly Conversation[];
  nodes: readonly NodeInfo[];
  ready: boolean;
  channel: ChannelState;
  /** Uids, or groups. */
  ids: Page;
}

export interface TestApi extends Backstage, TestManagers {
  readonly endpoint: HttpEndpoint;
  readonly dialect: ApiSettings["dialect"];
  /** Lines the logger wrote. */
  readonly logged: string[];
  readonly observed: [path: string, status: number][];
  /** A manager's `authorization` header. */
  login(username?: string, password?: string): Promise<string>;
}

/** A conversation in which nothing was said. */
export const IDLE: Conversation = {
  channel: { id: "g", type: 2 },
  headSeq: 0,
  readSeq: 0,
  unread: 0,
  deletedSeq: 0,
  changedAtMs: 0,
  last: undefined,
};

/** A node that takes clients and has nothing to do; it is 61 s old. */
export const IDLE_NODE: NodeInfo = {
  nodeId: "n1",
  clientAddress: "chat.example:5200",
  version: "1.2.3",
  startedAtMs: 1_000_000,
  sessions: 0,
  load: 0,
  isDraining: false,
};

/** An endpoint with the managers admin (password `right`), ops and view (password `p`). */
export async function startApi(
  settings: Partial<ApiSettings> = {},
  managerParts: Partial<Omit<ManagersPorts, "clock">> = {},
  parts: Partial<ApiPorts> = {},
): Promise<TestApi> {
  const stage: Backstage = {
    asked: [],
    thrown: undefined,
    presence: [],
    sessions: [],
    devices: [],
    connections: [],
    sent: { messageId: 7, messageSeq: 3, clientMsgNo: "c1" },
    page: { messages: [], headSeq: 0, more: false },
    inbox: [],
    state: undefined,
    stream: new ModelStream(),
    conversations: [IDLE],
    nodes: [IDLE_NODE],
    channel: {
      info: {
        ...{ id: "g1", type: 2, ban: true, disband: false, sendBan: false },
        ...{ allowStranger: false, large: true },
      },
      sizes: { members: 3, denylist: 2, allowlist: 1 },
      headSeq: 9,
    },
    ids: { ids: ["a", "b"], more: true },
    ready: true,
  };
  const logged: string[] = [];
  const observed: [string, number][] = [];
  const test = testManagers({ accounts: ACCOUNTS, ...managerParts });
  await test.managers.start();
  const endpoint = createHttpEndpoint({
    ...useCases(stage),
    managers: test.managers,
    settings: { ...SETTINGS, ...settings },
    log: pino({ level: "trace" }, { write: (line) => void logged.push(line) }),
    observe: (path, status) => observed.push([path, status]),
    ...parts,
  });
  const login = async (username = "admin", password = "right") => {
    const one = await test.managers.login(username, password, "10.9.9.9");
    return `Bearer ${one.token}`;
  };
  const { dialect = SETTINGS.dialect } = settings;
  const rest = { endpoint, dialect, logged, observed, login };
  return Object.assign(stage, test, rest);
}

/** A hash that costs nothing to check: what scrypt costs is tested where it is made. */
function cheapHash(password: string): string {
  const salt = Buffer.alloc(8, 1);
  const hash = scryptSync(password, salt, 16, { N: 2, r: 1, p: 1 });
  return `scrypt$2$1$1$${salt.toString("base64")}$${hash.toString("base64")}`;
}

const ACCOUNTS: readonly AccountConfig[] = [
  { username: "admin", passwordHash: cheapHash("right"), role: "admin" },
  { username: "ops", passwordHash: cheapHash("p"), role: "operator" },
  { username: "view", passwordHash: cheapHash("p"), role: "viewer" },
];

function useCases(stage: Backstage): Omit<ApiPorts, "managers" | "settings" | "log"> {
  const note =
    <T>(call: string, answer: () => T) =>
    async (...args: unknown[]): Promise<T> => {
      stage.asked.push({ call, args });
      if (stage.thrown !== undefined) throw stage.thrown;
      return answer();
    };
  const nothing = () => undefined;
  return {
    users: {
      setToken: note("setToken", nothing),
      quitDevice: note("quitDevice", nothing),
      onlineStatus: note("onlineStatus", () => stage.presence),
      liveSessions: note("liveSessions", () => [stage.sessions]),
      devices: note("devices", () => stage.devices),
      kick: note("kick", nothing),
    },
    systemAccounts: {
      list: note("systemUids", () => ["bot"]),
      add: note("addSystemUids", nothing),
      remove: note("removeSystemUids", nothing),
    },
    channels: {
      create: note("create", nothing),
      update: async (channel, flags) => {
        await note("update", nothing)(channel, flags);
        const off = { ban: false, disband: false, sendBan: false };
        return { ...channel, ...off, allowStranger: false, large: false };
      },
      addSubscribers: note("addSubscribers", nothing),
      removeSubscribers: note("removeSubscribers", nothing),
      state: note("state", () => stage.channel),
      uids: note("uids", () => stage.ids),
      groupsOf: note("groupsOf", () => stage.ids),
      removeAllSubscribers: note("removeAllSubscribers", nothing),
      changeList: note("changeList", nothing),
    },
    messages: {
      send: note("send", () => stage.sent),
      history: note("history", () => stage.page),
      headSeq: note("headSeq", () => stage.page.headSeq),
      find: note("find", () => stage.page),
    },
    inboxes: {
      unread: note("unread", () => stage.inbox),
      acknowledgeThrough: note("acknowledgeThrough", nothing),
    },
    streams: {
      post: note("post", () => ({ state: stage.state })),
      read: note("read", () => stage.stream.snapshot()),
    },
    followers: {
      follow: note("follow", () => ({ resume: nothing, stop: nothing })),
    },
    viewers: { allowsOrigin: () => true, admit: note("admit", nothing) },
    conversations: {
      heads: note("heads", () => stage.conversations.filter(isHead)),
      list: note("list", () => ({
        conversations: stage.conversations,
        more: false,
        looked: 1,
      })),
      change: note("change", () => {
        const [one] = stage.conversations;
        if (one === undefined) throw new Error("no conversation on the stage");
        return one;
      }),
    },
    *localSessions() {
      for (const one of stage.connections) yield { uid: one.session.uid, connection: () => one };
    },
    vitals: () => ({
      ...{ nodeId: "n1", version: "1.2.3", clientAddress: "chat:5200" },
      ...{ connections: 3, sessions: 2, deliveries: 7 },
      startedAtMs: IDLE_NODE.startedAtMs,
    }),
    cluster: { nodes: note("nodes", () => stage.nodes) },
    clock: () => IDLE_NODE.startedAtMs + 61_000,
    migration: () => ({
      status: "migrated",
      step: "",
      lastErr: null,
      tryCount: 0,
    }),
    readiness: async () => {
      if (stage.thrown !== undefined) throw stage.thrown;
      return { ready: stage.ready, reason: "The node is draining" };
    },
    metrics: {
      contentType: "text/plain; version=0.0.4; charset=utf-8",
      metrics: note("metrics", () => "jindou_up 1\n"),
    },
  };
}

function isHead(one: Conversation): one is Conversation & { readonly last: Message } {
  return one.last !== undefined;
}

export interface Call {
  readonly headers?: Readonly<Record<string, string>>;
  /** JSON-encoded unless it is text or bytes already. */
  readonly body?: unknown;
  readonly remoteAddress?: string;
}

export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into bodies whose shape the document has already been checked for
  readonly json: any;
}

/** Makes a call as the transport would: `target` is `METHOD /path?query`. */
export async function inject(
  api: Pick<TestApi, "endpoint" | "dialect">,
  target: string,
  call: Call = {},
): Promise<Answer> {
  const request = toRequest(api.endpoint, target, call);
  const answer = toAnswer(await respond(api.endpoint, request));
  const { dialect } = api;
  holdToHeaders(answer, dialect);
  await holdToDocument(request, answer, dialect, () =>
    startApi({ dialect }).then(({ endpoint }) => documentOf(endpoint)),
  );
  return answer;
}

/** The same for loads of hostile calls: the bare status, held to nothing. */
export async function statusOf(
  api: { readonly endpoint: HttpEndpoint },
  target: string,
  call: Call,
): Promise<number> {
  const request = toRequest(api.endpoint, target, call);
  return (await respond(api.endpoint, request)).status;
}

function toRequest(endpoint: HttpEndpoint, target: string, call: Call): HttpRequest {
  const [method = "", url = ""] = target.split(" ");
  const [path = "", query = ""] = url.split("?");
  const given: Call["headers"] = { host: "127.0.0.1:5001", ...call.headers };
  const headers = [...endpoint.headers, ...endpoint.routes.flatMap((one) => one.headers ?? [])];
  return {
    method,
    path,
    query,
    remoteAddress: call.remoteAddress ?? "127.0.0.1",
    headers: Object.fromEntries(headers.map((name) => [name, given[name] ?? ""])),
    params: paramsOf(endpoint, path) ?? [],
    body: toBytes(call.body),
  };
}

async function respond(endpoint: HttpEndpoint, request: HttpRequest): Promise<HttpReply> {
  const here = endpoint.routes.filter((one) => paramsIn(one.path, request.path) !== undefined);
  if (here.length === 0) return endpoint.notFound(request);
  const route = here.find((one) => one.method === request.method);
  if (route === undefined)
    return endpoint.wrongMethod(request, here.map((one) => one.method).join());
  const refused = await route.admit?.(request);
  if (refused !== undefined) return refused;
  if (request.body.length > endpoint.maxBodyBytes) return endpoint.tooLarge(request);
  const answer = await route.handle(request);
  if ("opened" in answer) throw new Error("a stream needs a real listener");
  return answer;
}

/** The `:name` parts of `path`, decoded; undefined when it is not of the pattern. */
function paramsIn(pattern: string, path: string): string[] | undefined {
  const wanted = pattern.split("/");
  const parts = path.split("/");
  if (parts.length !== wanted.length) return undefined;
  const fits = wanted.every((part, at) => part.startsWith(":") || part === parts[at]);
  if (!fits) return undefined;
  return parts.filter((_, at) => wanted[at]?.startsWith(":")).map(decodeURIComponent);
}

function paramsOf(endpoint: HttpEndpoint, path: string): string[] | undefined {
  for (const route of endpoint.routes) {
    const params = paramsIn(route.path, path);
    if (params !== undefined) return params;
  }
  return undefined;
}

function toBytes(body: unknown): Uint8Array {
  if (body === undefined) return new Uint8Array();
  if (body instanceof Uint8Array) return body;
  return Buffer.from(typeof body === "string" ? body : JSON.stringify(body));
}

function toAnswer({ status, headers = {}, body }: HttpReply): Answer {
  const text = typeof body === "string" ? body : Buffer.from(body).toString();
  const isJson = headers["content-type"]?.startsWith("application/json");
  const json = isJson && text !== "" ? JSON.parse(text) : undefined;
  return { status, headers, text, json };
}

/** The OpenAPI document as served. */
export async function documentOf(endpoint: HttpEndpoint): Promise<OpenApi> {
  const request = toRequest(endpoint, "GET /openapi.json", {});
  return toAnswer(await respond(endpoint, request)).json;
}
