// A row of the route table; the functions that make one give it the reader of its body or query.
// State: none.

import type { Static, TSchema, Type } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply, HttpRequest, HttpStream } from "../transport/types.ts";
import { type Adapt, type BodyCheck, jsonReader, queryReader, type Reader } from "./body.ts";
import type { Access, Guard } from "./guard.ts";

export type Answered = HttpReply | HttpStream;
export type Outcome = Answered | Promise<Answered>;

/** The replies of success. */
interface Success {
  readonly description: string;
  /** Undefined: not JSON, or without a fixed shape. */
  readonly body: TSchema | undefined;
  /** Absent: JSON. */
  readonly contentType?: string;
  /** The events sent to a caller that accepts server-sent events. */
  readonly eventStream?: string;
  /** The meaning of 204; absent: 204 is never answered. */
  readonly nothing?: string;
}

/** The documentation and access rule of a row. */
interface RowDocs {
  readonly path: string;
  readonly access: Access;
  readonly tag: string;
  readonly summary: string;
  readonly success: Success;
  /** Error codes of the use case, beyond those of every call. */
  readonly errors: readonly ErrorCode[];
  /** Request headers it reads beside those of every call, lower case. */
  readonly headers?: readonly string[];
  /**
   * Replaces the guard's check of `access`. Such a row also serves viewers and pages of any origin.
   */
  readonly admit?: (request: HttpRequest, guard: Guard) => ReturnType<Guard>;
}

/**
 * A row, ready to serve. `run` may throw or reject; a reply that goes on rechecks by `guard`;
 * `adapt` is applied to the body before it is checked.
 */
export interface ApiRoute extends RowDocs {
  readonly method: "GET" | "POST";
  readonly body: TSchema | undefined;
  readonly query: Type.TObject | undefined;
  readonly run: (request: HttpRequest, guard: Guard, adapt?: Adapt) => Outcome;
}

/** POST with a JSON body. */
export function postRoute<S extends TSchema>(
  row: RowDocs & {
    readonly body: S;
    handle(body: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  const run = reading(jsonReader(row.body), handle);
  return { ...docs, method: "POST", query: undefined, run };
}

/** POST with a JSON body and a query string. `first` checks the body before its schema. */
export function postQueryRoute<S extends TSchema, Q extends Type.TObject>(
  row: RowDocs & {
    readonly body: S;
    readonly query: Q;
    readonly first: BodyCheck;
    handle(body: Static<S>, query: Static<Q>): Outcome;
  },
): ApiRoute {
  const { handle, first, ...docs } = row;
  const readBody = jsonReader(row.body, first);
  const readQuery = queryReader(row.query);
  const run: ApiRoute["run"] = (request, _guard, adapt) => {
    const body = readBody(request, adapt);
    if ("refused" in body) return body.refused;
    const query = readQuery(request);
    if ("refused" in query) return query.refused;
    return naming(body.ignored, handle(body.value, query.value));
  };
  return { ...docs, method: "POST", run };
}

/** GET with a query string. */
export function queryRoute<S extends Type.TObject>(
  row: RowDocs & {
    readonly query: S;
    handle(query: Static<S>, request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  const run = reading(queryReader(row.query), handle);
  return { ...docs, method: "GET", body: undefined, run };
}

/** A call that reads neither body nor query. */
export function plainRoute(
  row: RowDocs & {
    readonly method: "GET" | "POST";
    handle(request: HttpRequest): Outcome;
  },
): ApiRoute {
  const { handle, ...docs } = row;
  return { ...docs, body: undefined, query: undefined, run: handle };
}

function reading<T>(
  read: Reader<T>,
  handle: (value: T, request: HttpRequest) => Outcome,
): ApiRoute["run"] {
  return (request, _guard, adapt) => {
    const input = read(request, adapt);
    if ("refused" in input) return input.refused;
    return naming(input.ignored, handle(input.value, request));
  };
}

/** Adds a header that names the body's ignored fields [decisions: Unknown body fields]. */
function naming(ignored: string | undefined, outcome: Outcome): Outcome {
  if (ignored === undefined) return outcome;
  const add = (reply: Answered): Answered =>
    "opened" in reply
      ? reply
      : {
          ...reply,
          headers: { ...reply.headers, "jindou-ignored-fields": ignored },
        };
  return outcome instanceof Promise ? outcome.then(add) : add(outcome);
}
