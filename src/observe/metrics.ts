// The metrics of one node: a family for each row of the table in `table.ts`, and the methods with
// which the gateway and the API update the metrics. An update must not throw. On hot paths, it must
// not allocate memory either.

import { EventLoopLag } from "./event-loop-lag.ts";
import { Cell, Family, Histogram } from "./families.ts";
import { DURATION_BOUNDS_S, METRICS, type MetricKey, type MetricRow } from "./table.ts";

type SeriesOf<Row extends MetricRow> = Row["kind"] extends "histogram" ? Histogram : Cell;

type Families = {
  readonly [Key in MetricKey]: Family<SeriesOf<(typeof METRICS)[Key]>>;
};

export interface GatewayMetrics {
  connectionOpened(listener: string): void;
  connectionClosed(listener: string): void;
  sessionOpened(flag: number): void;
  sessionClosed(flag: number): void;
  ended(reason: string): void;
  frameIn(bytes: number): void;
  worked(operation: string, frames: number): void;
  /**
   * Counts a message or command that was sent over a socket and accepted `ms` milliseconds after it
   * was received.
   */
  sent(channelType: number, ms: number): void;
  /** Counts an event that a client sent and that was passed on to its channel. */
  emitted(channelType: number): void;
  refused(code: string): void;
  /** Counts a message that a client acknowledged `ms` milliseconds after it was accepted. */
  acknowledged(ms: number): void;
  resumed(messages: number): void;
  eventPushed(sessions: number): void;
  /** Counts streams whose missed part was sent to a session that lagged or joined late. */
  caughtUp(streams: number): void;
  /** Adds `by`, which may be negative, to the number of catch-ups in progress. */
  catchingUp(by: number): void;
  commandsPushed(copies: number): void;
  commandsAcknowledged(commands: number): void;
}

export interface ApiMetrics {
  /**
   * Returns a function that counts a request of the route. `route` is the pattern of the path. The
   * path itself would create a series for each id.
   */
  requestCounter(route: string): RequestCounter;
  sent(channelType: number, ms: number): void;
  refused(code: string): void;
  login(outcome: "ok" | "failed" | "throttled"): void;
}

export type RequestCounter = (status: number, ms: number) => void;

/** The metrics page for Prometheus. Its module is loaded at the first scrape. */
interface MetricsPage {
  readonly contentType: string;
  metrics(): Promise<string>;
}

export interface Metrics {
  readonly gateway: GatewayMetrics;
  readonly api: ApiMetrics;
  /** All families. Other modules provide the values of those that are not counted here. */
  readonly families: Families;
  readonly page: MetricsPage;
  readonly eventLoop: Pick<EventLoopLag, "start" | "stop">;
}

export function createMetrics(build: {
  readonly version: string;
  readonly nodeId: string;
}): Metrics {
  const families = createFamilies();
  families.build.of(build.version, process.version, build.nodeId).set(1);
  const eventLoop = new EventLoopLag();
  return {
    gateway: gatewayMetrics(families),
    api: apiMetrics(families),
    families,
    page: createPage(Object.values(families), eventLoop),
    eventLoop,
  };
}

function createPage(
  families: readonly (Family<Cell> | Family<Histogram>)[],
  eventLoop: EventLoopLag,
): MetricsPage {
  const load = async () => {
    const { createRegistry } = await import("./metrics-page.ts");
    return createRegistry(families, eventLoop);
  };
  let registry: ReturnType<typeof load> | undefined;
  return {
    contentType: "text/plain; version=0.0.4; charset=utf-8",
    async metrics() {
      registry ??= load().catch((error) => {
        registry = undefined; // the next scrape tries again
        throw error;
      });
      return (await registry).metrics();
    },
  };
}

function createFamilies(): Families {
  const entries = Object.entries<MetricRow>(METRICS).map(([key, row]) => [
    key,
    row.kind === "histogram"
      ? new Family(row, () => new Histogram(DURATION_BOUNDS_S))
      : new Family(row, () => new Cell()),
  ]);
  // Object.fromEntries loses the types of the families. The cast is safe, because the kind of each
  // row has selected the right type above.
  return Object.fromEntries(entries) as Families;
}

/** Name of the WebSocket listener, which every node has. */
const CLIENT_LISTENER = "client";
const DEVICES = ["app", "web", "desktop"];
const channelName = (type: number) => (type === 1 ? "person" : "group");

function gatewayMetrics(families: Families): GatewayMetrics {
  families.connections.of(CLIENT_LISTENER);
  families.connectionsOpened.of(CLIENT_LISTENER);
  const sessions = DEVICES.map((name) => families.sessions.of(name));
  const frames = families.framesReceived.of();
  const bytes = families.bytesReceived.of();
  const recvackDelay = families.recvackDelay.of();
  const ranges = families.resumeRuns.of();
  const missed = families.resumeMessages.of();
  const events = families.eventFanouts.of();
  const emitted = [1, 2].map((type) => families.clientEvents.of(channelName(type)));
  const eventDeliveries = families.eventDeliveries.of();
  const works = new Map<string, Cell>(); // by operation
  return {
    connectionOpened(listener) {
      families.connections.of(listener).add();
      families.connectionsOpened.of(listener).add();
    },
    connectionClosed: (listener) => families.connections.of(listener).add(-1),
    sessionOpened: (flag) => sessions[flag]?.add(),
    sessionClosed: (flag) => sessions[flag]?.add(-1),
    ended: (reason) => families.connectionsEnded.of(reason).add(),
    frameIn(size) {
      frames.add();
      bytes.add(size);
    },
    worked(operation, work) {
      let cell = works.get(operation);
      if (cell === undefined) {
        cell = families.workCharged.of(operation);
        works.set(operation, cell);
      }
      cell.add(work);
    },
    sent: sentFrom("socket", families),
    emitted: (channelType) => emitted[channelType - 1]?.add(),
    refused: (code) => families.requestsRefused.of(code, "socket").add(),
    acknowledged: (ms) => recvackDelay.observe(ms / 1000),
    resumed(messages) {
      ranges.add();
      missed.add(messages);
    },
    eventPushed(sessions) {
      events.add();
      eventDeliveries.add(sessions);
    },
    caughtUp: adderOf(families.streamCatchUps.of()),
    catchingUp: adderOf(families.sessionsJoining.of()),
    commandsPushed: adderOf(families.commandsPushed.of()),
    commandsAcknowledged: adderOf(families.commandsAcknowledged.of()),
  };
}

function adderOf(cell: Cell): (count: number) => void {
  return (count) => cell.add(count);
}

function sentFrom(source: "socket" | "http", families: Families) {
  const person = families.messagesAccepted.of(channelName(1), source);
  const group = families.messagesAccepted.of(channelName(2), source);
  const duration = families.sendDuration.of(source);
  return (channelType: number, ms: number) => {
    (channelType === 1 ? person : group).add();
    duration.observe(ms / 1000);
  };
}

function apiMetrics(families: Families): ApiMetrics {
  return {
    requestCounter: (route) => requestCounter(route, families),
    sent: sentFrom("http", families),
    refused: (code) => families.requestsRefused.of(code, "http").add(),
    login: (outcome) => families.logins.of(outcome).add(),
  };
}

/**
 * Returns a function that counts the requests of a route. It creates the route's series at the
 * first request, and keeps the counts by status, because joining labels is slow.
 */
function requestCounter(route: string, families: Families): RequestCounter {
  const byStatus = new Map<number, Cell>();
  let duration: Histogram | undefined;
  return (status, ms) => {
    let count = byStatus.get(status);
    if (count === undefined) {
      count = families.httpRequests.of(route, String(status));
      byStatus.set(status, count);
    }
    duration ??= families.httpDuration.of(route);
    count.add();
    duration.observe(ms / 1000);
  };
}
