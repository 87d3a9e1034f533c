// A row of the table as a route of the listener: guard (before the body is received), run, map
// errors to replies and replies to the dialect, log our own errors, count. State: the time of the last log line about an
// outage. Never throws, and never logs a body, a token or a password.

import { BrokerError } from "../broker/errors.ts";
import type { ApiMetrics } from "../observe/metrics.ts";
import type { HttpReply, HttpRequest, HttpRoute } from "../transport/types.ts";
import type { Dialect } from "./dialect.ts";
import { HTTP_STATUS, thrownReply } from "./errors.ts";
import type { Guard } from "./guard.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import type { Answered, ApiRoute } from "./route.ts";

export interface ApiLog {
  error(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

const OUTAGE_LOG_MS = 1000;
/** Fits a login with the longest name and password, every character escaped. */
const MAX_PUBLIC_BODY_BYTES = 8192;

/** The routes it makes neither throw nor reject. */
export function createServe({
  guard,
  dialect,
  log,
  observe,
}: {
  readonly guard: Guard;
  readonly dialect: Dialect;
  readonly log: ApiLog;
  readonly observe: ApiMetrics["request"] | undefined;
}): (route: ApiRoute) => HttpRoute {
  const report = createReport(log);
  return (route) => {
    const { method, path, headers = [], access } = route;
    const isPublic = access === "public" || access === "login";
    const fail = (thrown: unknown): HttpReply => {
      report(route, thrown);
      return thrownReply(thrown);
    };
    const judge = route.admit;
    const say = (reply: HttpReply) => dialect.reply(reply, route);
    const adapt = dialect.adaptOf(route);
    const serving = { fail, say, path, observe };
    const admit = served(
      (request) => (judge === undefined ? guard(request, access) : judge(request, guard)),
      serving,
    );
    const handle = served((request) => route.run(request, guard, adapt), serving);
    const isForPages = judge !== undefined;
    return {
      method,
      path,
      headers,
      isPublic,
      ...(isPublic ? { maxBodyBytes: MAX_PUBLIC_BODY_BYTES } : {}),
      admit: isForPages ? openToPages(admit) : admit,
      handle: isForPages ? openToPages(handle) : handle,
    };
  };
}

type Step<Result> = (request: HttpRequest) => Result | Promise<Result>;

/**
 * The step, with what it throws or rejects turned into a reply, in the dialect. Its reply is counted
 * and timed; without one a later step counts.
 */
function served<Result extends Answered | undefined>(
  step: Step<Result>,
  {
    fail,
    say,
    path,
    observe,
  }: {
    readonly fail: (thrown: unknown) => HttpReply;
    readonly say: (reply: HttpReply) => HttpReply;
    readonly path: string;
    readonly observe: ApiMetrics["request"] | undefined;
  },
): Step<Result | HttpReply> {
  return (request) => {
    const startMs = performance.now();
    const done = (found: Result | HttpReply): Result | HttpReply => {
      if (found === undefined) return found;
      const reply = "opened" in found ? found : say(found);
      observe?.(path, reply.status, performance.now() - startMs);
      return reply;
    };
    const failed = (thrown: unknown) => done(fail(thrown));
    let outcome: Result | Promise<Result>;
    try {
      outcome = step(request);
    } catch (thrown) {
      return failed(thrown);
    }
    return outcome instanceof Promise ? outcome.then(done, failed) : done(outcome);
  };
}

/** Pages of any origin may read all replies: the calls carry a credential that no browser adds. */
function openToPages<Result extends Answered | undefined>(step: Step<Result>): Step<Result> {
  const open = (reply: Result): Result =>
    reply === undefined || "opened" in reply // has the header already
      ? reply
      : { ...reply, headers: { ...reply.headers, ...OPEN_TO_PAGES } };
  return (request) => {
    const outcome = step(request);
    return outcome instanceof Promise ? outcome.then(open) : open(outcome);
  };
}

/** Logs bugs, and an outage at most once a second; errors caused by callers are not logged. */
function createReport(log: ApiLog): (route: ApiRoute, thrown: unknown) => void {
  let nextOutageMs = 0;
  return (route, thrown) => {
    const code = thrown instanceof BrokerError ? thrown.code : "internal";
    const fields = { method: route.method, path: route.path, code };
    if (HTTP_STATUS[code] === 500) return log.error({ ...fields, err: thrown }, "A request failed");
    const nowMs = performance.now();
    if (HTTP_STATUS[code] !== 503 || nowMs < nextOutageMs) return;
    nextOutageMs = nowMs + OUTAGE_LOG_MS;
    log.warn({ ...fields, err: thrown }, "Requests are refused");
  };
}
