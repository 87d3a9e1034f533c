// The metrics of one node: the families of the table, and what the gateway and the API report.
// Those rooms know methods, not names of metrics. Counting neither allocates nor throws.

import type { Registry } from "prom-client";
import { Cell, createRegistry, Family, Histogram } from "./registry.ts";
import { DURATION_BOUNDS_S, METRICS, type MetricKey, type MetricRow } from "./table.ts";

type SeriesOf<Row extends MetricRow> = Row["kind"] extends "histogram" ? Histogram : Cell;

/** Every metric of the table, by its key there. */
type Families = {
  readonly [Key in MetricKey]: Family<SeriesOf<(typeof METRICS)[Key]>>;
};

/** Events of the gateway. Flags, types, reasons and codes are the domain's. */
export interface GatewayMetrics {
  connectionOpened(): void;
  connectionClosed(): void;
  sessionOpened(flag: number): void;
  sessionClosed(flag: number): void;
  /** The server closed a connection. */
  ended(reason: string): void;
  frameIn(bytes: number): void;
  /** Work charged for an operation, in frames. */
  worked(operation: string, frames: number): void;
  /** A message of a socket became durable, `ms` after it came in. */
  sent(channelType: number, ms: number): void;
  refused(code: string): void;
  /** A client confirmed a message, `ms` after it was accepted. */
  acknowledged(ms: number): void;
  /** A range of missed messages was sent. */
  resumed(messages: number): void;
  /** An event was sent to so many sessions. */
  eventPushed(sessions: number): void;
  /** A session that lagged or joined got so many streams from the store, merged. */
  caughtUp(streams: number): void;
  /** So many more sessions, and groups of them, are catching up; negative: fewer. */
  catchingUp(by: number): void;
  commandsPushed(copies: number): void;
  commandsAcknowledged(commands: number): void;
}

/** Events of the control plane. */
export interface ApiMetrics {
  /**
   * Per reply; for a reply in pieces when it begins. `route` is a route's pattern, never a
   * request's path.
   */
  request(route: string, status: number, ms: number): void;
  sent(channelType: number, ms: number): void;
  refused(code: string): void;
  login(outcome: "ok" | "failed" | "throttled"): void;
}

export interface Metrics {
  readonly gateway: GatewayMetrics;
  readonly api: ApiMetrics;
  /**
   * For numbers that another room counts: `families.fanouts.of().from(() => hub.stats.fanouts)`.
   */
  readonly families: Families;
  /** For GET /metrics: `metrics()` is the page in the Prometheus text format. */
  readonly registry: Registry;
}

/** The metrics of a node of this version, all at zero. */
export function createMetrics(build: { readonly version: string }): Metrics {
  const families = createFamilies();
  families.build.of(build.version, process.version).set(1);
  const registry = createRegistry(Object.values(families));
  return {
    gateway: gatewayMetrics(families),
    api: apiMetrics(families),
    families,
    registry,
  };
}

function createFamilies(): Families {
  const entries = Object.entries<MetricRow>(METRICS).map(([key, row]) => [
    key,
    row.kind === "histogram"
      ? new Family(row, () => new Histogram(DURATION_BOUNDS_S))
      : new Family(row, () => new Cell()),
  ]);
  // fromEntries loses the family type of each key; the line above chose it by the row's kind
  return Object.fromEntries(entries) as Families;
}

const DEVICES = ["app", "web", "desktop"];
const channelName = (type: number) => (type === 1 ? "person" : "group");

function gatewayMetrics(families: Families): GatewayMetrics {
  const connections = families.connections.of();
  const opened = families.connectionsOpened.of();
  const sessions = DEVICES.map((name) => families.sessions.of(name));
  const frames = families.framesReceived.of();
  const bytes = families.bytesReceived.of();
  const recvackDelay = families.recvackDelay.of();
  const ranges = families.resumeRuns.of();
  const missed = families.resumeMessages.of();
  const events = families.eventFanouts.of();
  const eventDeliveries = families.eventDeliveries.of();
  const works = new Map<string, Cell>(); // as many as there are operations
  return {
    connectionOpened() {
      connections.add();
      opened.add();
    },
    connectionClosed: () => connections.add(-1),
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
  const routes = new Map<string, RouteSeries>();
  return {
    request(route, status, ms) {
      let series = routes.get(route);
      if (series === undefined) {
        series = {
          byStatus: new Map(),
          duration: families.httpDuration.of(route),
        };
        routes.set(route, series);
      }
      let count = series.byStatus.get(status);
      if (count === undefined) {
        count = families.httpRequests.of(route, String(status));
        series.byStatus.set(status, count);
      }
      count.add();
      series.duration.observe(ms / 1000);
    },
    sent: sentFrom("http", families),
    refused: (code) => families.requestsRefused.of(code, "http").add(),
    login: (outcome) => families.logins.of(outcome).add(),
  };
}

/** Looked up by number and not by joined labels: /message/send comes here for every call. */
interface RouteSeries {
  readonly byStatus: Map<number, Cell>;
  readonly duration: Histogram;
}
