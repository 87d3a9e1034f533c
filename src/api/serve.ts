// One row of the table as the listener takes it: guard (before the body is there), run, map what was thrown, log what is ours, count. State: when an outage was
// last logged. Never lets an exception out, and never logs a body, a token or a password.

import { BrokerError } from "../broker/errors.ts";
import type { HttpReply, HttpRequest, HttpRoute } from "../transport/types.ts";
import { HTTP_STATUS, thrownReply } from "./errors.ts";
import type { Guard } from "./guard.ts";
import { OPEN_TO_PAGES } from "./reply.ts";
import type { Answered, ApiRoute } from "./route.ts";

/** What is needed of a pino logger. */
export interface ApiLog {
  error(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** Told of each reply: the route's path, its status, and how long it took; of one that comes in pieces when it begins. */
export type ReplyObserver = (
  path: string,
  status: number,
  durationMs: number,
) => void;

export interface ServeParts {
  readonly guard: Guard;
  readonly log: ApiLog;
  readonly observe: ReplyObserver | undefined;
}

/** Wraps a row; the result neither throws nor rejects. */
export type Serve = (route: ApiRoute) => HttpRoute;

const OUTAGE_LOG_MS = 1000;
/** A login of the longest name and password fits, with every character escaped. */
const MAX_PUBLIC_BODY_BYTES = 8192;

export function createServe({ guard, log, observe }: ServeParts): Serve {
  const report = createReport(log);
  return (route) => {
    const { method, path, headers = [], access } = route;
    const isPublic = access === "public" || access === "login";
    const fail = (thrown: unknown): HttpReply => {
      report(route, thrown);
      return thrownReply(thrown);
    };
    const judged = settled(
      (request) =>
        route.admit === undefined
          ? guard(request, access)
          : route.admit(request, guard),
      fail,
    );
    const answered = settled((request) => route.run(request, guard), fail);
    const isForPages = route.admit !== undefined;
    const admit = observed(judged, path, observe);
    const handle = observed(answered, path, observe);
    return {
      ...{ method, path, headers, isPublic },
      ...(isPublic ? { maxBodyBytes: MAX_PUBLIC_BODY_BYTES } : {}),
      admit: isForPages ? openToPages(admit) : admit,
      handle: isForPages ? openToPages(handle) : handle,
    };
  };
}

type Step<Result> = (request: HttpRequest) => Result | Promise<Result>;

/** The step, answering what it throws or rejects with. */
function settled<Result>(
  step: Step<Result>,
  fail: (thrown: unknown) => HttpReply,
): Step<Result | HttpReply> {
  return (request) => {
    try {
      const outcome = step(request);
      return outcome instanceof Promise ? outcome.catch(fail) : outcome;
    } catch (thrown) {
      return fail(thrown);
    }
  };
}

/** The step, its reply counted and timed; a call that goes on is counted by a later step. */
function observed<Result extends Answered | undefined>(
  step: Step<Result>,
  path: string,
  observe: ReplyObserver | undefined,
): Step<Result> {
  if (observe === undefined) return step;
  return (request) => {
    const startMs = performance.now();
    const done = (reply: Result): Result => {
      if (reply !== undefined)
        observe(path, reply.status, performance.now() - startMs);
      return reply;
    };
    const outcome = step(request);
    return outcome instanceof Promise ? outcome.then(done) : done(outcome);
  };
}

/** Lets pages of any origin read every reply, refusals too: such calls carry their credential themselves, nothing a browser adds. */
function openToPages<Result extends Answered | undefined>(
  step: Step<Result>,
): Step<Result> {
  const open = (reply: Result): Result =>
    reply === undefined || "opened" in reply // it says so itself
      ? reply
      : { ...reply, headers: { ...reply.headers, ...OPEN_TO_PAGES } };
  return (request) => {
    const outcome = step(request);
    return outcome instanceof Promise ? outcome.then(open) : open(outcome);
  };
}

/** Logs what a caller could not have caused: bugs each time, an outage at most once a second. A caller's own errors are not logged. */
function createReport(log: ApiLog): (route: ApiRoute, thrown: unknown) => void {
  let nextOutageMs = 0;
  return (route, thrown) => {
    const code = thrown instanceof BrokerError ? thrown.code : "internal";
    const fields = { method: route.method, path: route.path, code };
    if (HTTP_STATUS[code] === 500)
      return log.error({ ...fields, err: thrown }, "A request failed");
    const nowMs = performance.now();
    if (HTTP_STATUS[code] !== 503 || nowMs < nextOutageMs) return;
    nextOutageMs = nowMs + OUTAGE_LOG_MS;
    log.warn({ ...fields, err: thrown }, "Requests are refused");
  };
}
