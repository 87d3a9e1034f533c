// Runs the control plane in this process: the real endpoint and real managers over stubs of the use
// cases, which record their calls and return what the test sets. `inject` also checks every reply
// against the OpenAPI document: its status must be documented, and its body must match the schema.

import { scryptSync } from "node:crypto";
import pino from "pino";
import type { ClosedConnection, LocalConnection } from "../../src/api/connections.ts";
import { type ApiPorts, type ApiSettings, createHttpEndpoint } from "../../src/api/endpoint.ts";
import type { BusyChannel } from "../../src/broker/channel-activity.ts";
import type { ChannelState, Page } from "../../src/broker/channels.ts";
import { createConversations } from "../../src/broker/conversations.ts";
import {
  EVENT_PARTITIONS,
  EVENTS_START,
  type EventPosition,
} from "../../src/broker/event-ports.ts";
import { Events } from "../../src/broker/events.ts";
import { LOG_START } from "../../src/broker/log-frame.ts";
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
import type { WebhookAttempt, WebhookView } from "../../src/broker/webhook-ports.ts";
import { createWukongimHttp } from "../../src/compat/wukongim/http.ts";
import type { HttpEndpoint, HttpReply, HttpRequest } from "../../src/transport/types.ts";
import { type TestManagers, testManagers } from "../broker/manager-store.ts";
import { ModelStream } from "../broker/stream-model.ts";
import { checkAgainstDocument, checkHeaders, type OpenApi } from "./document.ts";

/** Settings of the endpoint, and the name of the dialect. */
export type TestSettings = ApiSettings & { readonly dialect: "jindou" | "wukongim" };

export const SETTINGS: TestSettings = {
  requiresCredential: false,
  staticToken: "",
  guessLimits: { attempts: 20, windowS: 60 },
  maxBodyBytes: 1_048_576,
  maxSubscribersPerCall: 10_000,
  dialect: "jindou",
  version: "1.2.3",
};

/** Last path segments of the calls that change the lists of a channel, below `/channel/`. */
export const LIST_CALLS = ["blacklist", "whitelist"].flatMap((list) =>
  ["add", "set", "remove", "remove_all"].map((name) => `${list}_${name}`),
);

/** Calls that the stubs of the use cases have recorded, and the results that they return. */
export interface StubState {
  readonly calls: { readonly call: string; readonly args: unknown[] }[];
  /** Error that the next calls throw, or `undefined` if they succeed. */
  failure: unknown;
  presence: readonly Presence[];
  /** Whether every account is banned. */
  isBanned: boolean;
  /** Sessions of every user. */
  sessions: readonly SessionRecord[];
  devices: readonly Device[];
  /** Connections of this node. */
  connections: Iterable<LocalConnection>;
  closedConnections: Iterable<ClosedConnection>;
  /** Numbers of messages and events that were sent to channels. */
  busy: readonly BusyChannel[];
  sendResult: SendResult;
  page: HistoryPage;
  inbox: readonly InboxCommand[];
  /** State of the stream after a posted event. */
  state: StreamState | undefined;
  /** Stream that `read` returns. */
  stream: ModelStream;
  conversations: readonly Conversation[];
  nodes: readonly NodeInfo[];
  ready: boolean;
  channel: ChannelState;
  /** Page of uids or group ids. */
  ids: Page;
}

/** A control plane with its stubs, its log and its metrics. */
export interface TestApi extends StubState, TestManagers {
  readonly endpoint: HttpEndpoint;
  readonly ports: UseCases;
  readonly dialect: TestSettings["dialect"];
  /** Lines of the log. */
  readonly logged: string[];
  /** Requests that were counted. */
  readonly observed: [path: string, status: number][];
  /** Logs a manager in and returns the `authorization` header. */
  login(username?: string, password?: string): Promise<string>;
}

/** A conversation without messages. */
export const IDLE: Conversation = {
  channel: { id: "g", type: 2 },
  headSeq: 0,
  readSeq: 0,
  unread: 0,
  deletedSeq: 0,
  changedAtMs: 0,
  last: undefined,
};

const EMPTY_LOG = {
  ...{ incarnation: 1, contentType: "text/plain", tail: LOG_START, records: 0 },
  ...{ closed: undefined, ttlS: undefined, expiresAtMs: undefined },
};

/** A node without sessions that accepts clients. It was started 61 s ago. */
export const IDLE_NODE: NodeInfo = {
  nodeId: "n1",
  clientAddress: "chat.example:5200",
  tcpAddress: "",
  version: "1.2.3",
  startedAtMs: 1_000_000,
  sessions: 0,
  load: 0,
  isDraining: false,
  importPhase: "none" as const,
};

/**
 * Starts a control plane with the managers `admin` (password `right`), `ops` and `view` (password
 * `p`).
 */
export async function startApi(
  settings: Partial<TestSettings> = {},
  managerPorts: Partial<Omit<ManagersPorts, "clock">> = {},
  ports: Partial<UseCases> = {},
): Promise<TestApi> {
  const state: StubState = {
    calls: [],
    failure: undefined,
    presence: [],
    isBanned: false,
    sessions: [],
    devices: [],
    connections: [],
    closedConnections: [],
    busy: [],
    sendResult: { messageId: 7, messageSeq: 3, clientMsgNo: "c1", repeated: false },
    page: { messages: [], headSeq: 0, more: false },
    inbox: [],
    state: undefined,
    stream: new ModelStream(),
    conversations: [IDLE],
    nodes: [IDLE_NODE],
    channel: {
      info: {
        ...{ id: "g1", type: 2, ban: true, disband: false, sendBan: false },
        ...{ allowStranger: false, large: true, clientEvents: false },
      },
      sizes: { members: 3, denylist: 2, allowlist: 1 },
      headSeq: 9,
    },
    ids: { ids: ["a", "b"], more: true, total: 3 },
    ready: true,
  };
  const logged: string[] = [];
  const observed: [string, number][] = [];
  const testing = testManagers({ accounts: ACCOUNTS, ...managerPorts });
  await testing.managers.start();
  const useCasePorts = { ...useCases(state), ...ports };
  const allSettings = { ...SETTINGS, ...settings };
  const endpoint = createHttpEndpoint({
    ...useCasePorts,
    ...createWukongimHttp(useCasePorts, allSettings),
    managers: testing.managers,
    settings: allSettings,
    log: pino({ level: "trace" }, { write: (line) => void logged.push(line) }),
    requestCounter: (path) => (status) => observed.push([path, status]),
  });
  const login = async (username = "admin", password = "right") => {
    const { token } = await testing.managers.login(username, password, "10.9.9.9");
    return `Bearer ${token}`;
  };
  return Object.assign(state, testing, {
    endpoint,
    ports: useCasePorts,
    dialect: allSettings.dialect,
    logged,
    observed,
    login,
  });
}

/** Returns a password hash that is cheap to check, to keep the tests fast. */
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

const SETTING = { isSet: false, source: "default", description: "A setting.", unit: undefined };

const WEBHOOK: WebhookView = {
  ...{ id: "w", url: "https://example.com/", types: ["*"], channels: {}, format: "standard" },
  ...{ batch: { max: 100, waitMs: 200 }, order: "channel", enabled: true, maxAgeS: 259_200 },
  ...{ isFixed: false, disabledReason: "", createdAtMs: 1, replays: 0 },
};

const ATTEMPT: WebhookAttempt = {
  ...{ timeMs: 1, webhookId: "0-1-1", attempt: 1, events: 1, isReplay: false, status: 204 },
  ...{ durationMs: 1, error: "", reply: "", nodeId: "n1" },
};
const NO_EVENTS = new Array<EventPosition>(EVENT_PARTITIONS).fill(EVENTS_START);

const unused = () => Promise.reject(new Error("this test does not use this call"));

type UseCases = Omit<
  ApiPorts,
  "managers" | "settings" | "log" | "dialect" | "moreRows" | "plainMoreRows"
> &
  Parameters<typeof createWukongimHttp>[0];

/** Creates stubs that record their calls and return the values in `state`. */
function useCases(state: StubState): UseCases {
  const record =
    <T>(call: string, result: () => T) =>
    async (...args: unknown[]): Promise<T> => {
      state.calls.push({ call, args });
      if (state.failure !== undefined) throw state.failure;
      return result();
    };
  const nothing = () => undefined;
  return {
    users: {
      setToken: record("setToken", nothing),
      quitDevice: record("quitDevice", nothing),
      onlineStatus: record("onlineStatus", () => state.presence),
      liveSessions: record("liveSessions", () => [state.sessions]),
      devices: record("devices", () => state.devices),
      kick: record("kick", nothing),
      isBanned: async () => state.isBanned,
      setBan: record("setBan", nothing),
    },
    events: new Events({
      store: {
        feedSwitch: async () => true,
        switchFeed: record("switchFeed", nothing),
        newestEvents: async () => NO_EVENTS,
        oldestEvents: async () => NO_EVENTS,
        eventsSince: async () => NO_EVENTS,
        readEvents: unused,
        onEvents: () => () => {},
        trimEvents: unused,
        eventBytes: unused,
        readMessages: unused,
      },
      toJson: () => ({}),
    }),
    systemAccounts: {
      list: record("systemUids", () => ["bot"]),
      add: record("addSystemUids", nothing),
      remove: record("removeSystemUids", nothing),
    },
    channels: {
      create: record("create", nothing),
      update: async (channel, flags) => {
        await record("update", nothing)(channel, flags);
        const off = { ban: false, disband: false, sendBan: false };
        return { ...channel, ...off, allowStranger: false, large: false, clientEvents: true };
      },
      addSubscribers: record("addSubscribers", nothing),
      removeSubscribers: record("removeSubscribers", nothing),
      state: record("state", () => state.channel),
      uids: record("uids", () => state.ids),
      groupsOf: record("groupsOf", () => state.ids),
      removeAllSubscribers: record("removeAllSubscribers", nothing),
      changeList: record("changeList", nothing),
    },
    messages: {
      send: record("send", () => state.sendResult),
      history: record("history", () => state.page),
      headSeq: record("headSeq", () => state.page.headSeq),
      find: record("find", () => state.page),
    },
    inboxes: {
      unread: record("unread", () => state.inbox),
      acknowledgeThrough: record("acknowledgeThrough", nothing),
    },
    streams: {
      post: record("post", () => ({ state: state.state })),
      read: record("read", () => state.stream.snapshot()),
      cancel: record("cancel", () => "cancelled" as const),
    },
    logs: {
      createLog: record("createLog", () => ({ verdict: "exists", head: EMPTY_LOG }) as const),
      append: record("append", () => ({ verdict: "appended", ...EMPTY_LOG, producer: undefined })),
      logHead: record("logHead", () => EMPTY_LOG),
      read: record("readLog", () => ({
        ...{ verdict: "read", head: EMPTY_LOG, start: LOG_START, next: LOG_START, pieces: [] },
      })),
      deleteLog: record("deleteLog", () => "done" as const),
      appendInOrder: unused,
    },
    channelLogs: {
      create: record("createInChannel", () => ({ verdict: "exists", head: EMPTY_LOG }) as const),
      append: record("appendInChannel", () => ({
        ...{ verdict: "appended", ...EMPTY_LOG, producer: undefined },
      })),
    },
    logCursors: { open: unused },
    bearerBudget: { requirePaid: () => undefined, begin: () => () => undefined },
    signedUrls: {
      sign: record("sign", () => "1.read..mac"),
      verify: unused,
      rotate: record("rotate", () => ({ number: 2, secret: new Uint8Array(), createdAtMs: 0 })),
    },
    admitsPage: () => false,
    longPollMs: 100,
    followers: {
      follow: record("follow", () => ({ resume: nothing, stop: nothing })),
    },
    viewers: {
      allowsOrigin: () => true,
      admit: record("admit", nothing),
      beginRead: () => nothing,
      clock: Date.now,
    },
    conversations: {
      read: record("readConversation", () => IDLE),
      select: createConversations({
        store: {
          newestConversations: record("heads", () => {
            const heads = state.conversations
              .filter(isHead)
              .sort((a, b) => b.last.messageId - a.last.messageId);
            return {
              ...{ heads, isComplete: true },
              newestChangeMs: Math.max(0, ...heads.map(({ changedAtMs }) => changedAtMs)),
              channels: () => heads.map(({ channel }) => channel),
            };
          }),
          ...{ readConversations: unused },
          ...{ conversation: unused, changeConversation: unused },
        },
        publisher: { announce: unused },
        clock: () => 0,
      }).select,
      among: record("among", () => state.conversations.filter(isHead)),
      list: record("list", () => ({
        conversations: state.conversations,
        cursor: undefined,
        readCount: 1,
      })),
      change: record("change", () => {
        const [conversation] = state.conversations;
        if (conversation === undefined) throw new Error("the test has set no conversation");
        return conversation;
      }),
    },
    imports: {
      open: record("openImport", () => ({ kind: "done" }) as const),
      finish: record("closeImport", () => ({ kind: "done" }) as const),
      apply: async (lines) => {
        await record("importLines", nothing)(lines);
        return lines.map(() => "stored" as const);
      },
      range: record("importRange", () => ({
        ...{ count: 0, throughSeq: 0, headSeq: 0, headTimestampMs: 0, checksum: "" },
      })),
      state: record("importState", () => ({ phase: "open", stored: { token: 1 } }) as const),
    },
    webhooks: {
      list: record("listWebhooks", () => []),
      create: record("createWebhook", () => ({ id: "w", secret: "whsec_" })),
      update: record("updateWebhook", () => WEBHOOK),
      remove: record("removeWebhook", () => "done" as const),
      test: record("testWebhook", () => ATTEMPT),
      replay: record("replayWebhook", () => ({ id: "r" })),
      addSecret: record("addWebhookSecret", () => ({ secret: "whsec_" })),
      attempts: record("webhookAttempts", () => [ATTEMPT]),
      failures: record("webhookFailures", () => []),
      retry: record("retryWebhook", () => ATTEMPT),
    },
    importLimits: { maxPayloadBytes: 65_536, retentionS: 0, maxChannelMessages: 0 },
    *localSessions() {
      for (const connection of state.connections)
        yield { uid: connection.session.uid, connection: () => connection };
    },
    nodeId: "n1",
    closedSessions: () => state.closedConnections,
    activity: { windowS: 900, busiest: (limit) => state.busy.slice(0, limit) },
    newestErrors: () => [],
    shownSettings: () => [
      { key: "api.listen", value: "127.0.0.1:5001", ...SETTING, unit: "host:port" },
      {
        key: "api.token",
        ...SETTING,
        isSet: true,
        source: "the environment variable JINDOU_API_TOKEN",
      },
    ],
    vitals: () => ({
      ...{ nodeId: "n1", version: "1.2.3", clientAddress: "chat:5200" },
      tcpAddress: "chat:5100",
      ...{ connections: 3, sessions: 2, deliveries: 7 },
      uptimeMs: 61_000,
    }),
    cluster: { nodes: record("nodes", () => state.nodes) },
    clock: () => IDLE_NODE.startedAtMs + 61_000,
    clientsConnectTo: "port 5200 (client.listen)",
    frontPage: "/demo/",
    migration: () => ({
      status: "migrated",
      step: "",
      lastErr: null,
      tryCount: 0,
    }),
    readiness: async () => {
      if (state.failure !== undefined) throw state.failure;
      return { ready: state.ready, reason: "The node is draining" };
    },
    metrics: {
      contentType: "text/plain; version=0.0.4; charset=utf-8",
      metrics: record("metrics", () => "jindou_up 1\n"),
    },
  };
}

function isHead(
  conversation: Conversation,
): conversation is Conversation & { readonly last: Message } {
  return conversation.last !== undefined;
}

/** Headers and body of a call. */
export interface Call {
  readonly headers?: Readonly<Record<string, string>>;
  /** Body. Encoded as JSON unless it is text or bytes. */
  readonly body?: unknown;
  readonly remoteAddress?: string;
}

/** A reply and its parsed body. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of the checked body
  readonly json: any;
}

/**
 * Makes a call as the transport does, and checks the reply against the document. `target` is
 * `METHOD /path?query`.
 */
export async function inject(
  api: Pick<TestApi, "endpoint" | "dialect">,
  target: string,
  call: Call = {},
): Promise<Reply> {
  const request = toRequest(api.endpoint, target, call);
  const reply = toReply(await respond(api.endpoint, request));
  const { dialect } = api;
  checkHeaders(reply, dialect);
  await checkAgainstDocument(request, reply, dialect, () =>
    startApi({ dialect }).then(({ endpoint }) => documentOf(endpoint)),
  );
  return reply;
}

/**
 * Makes a call and returns only its status. Does not check the reply, so that many calls are fast.
 */
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
  const values: Call["headers"] = { host: "127.0.0.1:5001", ...call.headers };
  return {
    method,
    path,
    query,
    remoteAddress: call.remoteAddress ?? "127.0.0.1",
    isProxied: false,
    scheme: "http",
    onAborted: () => undefined,
    headers: Object.fromEntries(
      headersOf(endpoint).flatMap((name) => (values[name] ? [[name, values[name]]] : [])),
    ),
    params: paramsOf(endpoint, path) ?? [],
    body: toBytes(call.body),
  };
}

/** Headers that the routes of an endpoint read. */
const headersOfEndpoints = new WeakMap<HttpEndpoint, readonly string[]>();

function headersOf(endpoint: HttpEndpoint): readonly string[] {
  const ofRoutes = () => endpoint.routes.flatMap((route) => route.headers ?? []);
  const headers = headersOfEndpoints.get(endpoint) ?? [
    ...new Set([...endpoint.headers, ...ofRoutes()]),
  ];
  headersOfEndpoints.set(endpoint, headers);
  return headers;
}

/** Selects the route and returns its reply, as the transport does. */
async function respond(endpoint: HttpEndpoint, request: HttpRequest): Promise<HttpReply> {
  const routes = endpoint.routes.filter(({ path }) => paramsIn(path, request.path) !== undefined);
  if (routes.length === 0) return endpoint.notFound(request);
  const route = routes.find(({ method }) => method === request.method);
  if (route === undefined)
    return endpoint.wrongMethod(request, routes.map(({ method }) => method).join());
  const refusal = await route.admit?.(request);
  if (refusal !== undefined) return refusal;
  if (request.body.length > endpoint.maxBodyBytes) return endpoint.tooLarge(request);
  const reply = await route.handle(request);
  if ("opened" in reply) throw new Error("a reply in pieces needs a real listener");
  return reply;
}

/**
 * Returns the values of the `:name` segments, decoded, or `undefined` if `path` does not match the
 * pattern.
 */
function paramsIn(pattern: string, path: string): string[] | undefined {
  if (!pattern.includes(":") && !pattern.endsWith("/*")) return pattern === path ? [] : undefined;
  const patternSegments = pattern.split("/");
  const segments = path.split("/");
  if (pattern.endsWith("/*")) return path.startsWith(pattern.slice(0, -1)) ? [] : undefined;
  if (segments.length !== patternSegments.length) return undefined;
  const matches = patternSegments.every(
    (segment, at) => segment.startsWith(":") || segment === segments[at],
  );
  if (!matches) return undefined;
  return segments.filter((_, at) => patternSegments[at]?.startsWith(":")).map(decodeURIComponent);
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

function toReply({ status, headers = {}, body }: HttpReply): Reply {
  const text = typeof body === "string" ? body : Buffer.from(body).toString();
  const isJson = headers["content-type"]?.startsWith("application/json");
  const json = isJson && text !== "" ? JSON.parse(text) : undefined;
  return { status, headers, text, json };
}

/** Returns the OpenAPI document that the endpoint serves. */
export async function documentOf(endpoint: HttpEndpoint): Promise<OpenApi> {
  const request = toRequest(endpoint, "GET /openapi.json", {});
  return toReply(await respond(endpoint, request)).json;
}
