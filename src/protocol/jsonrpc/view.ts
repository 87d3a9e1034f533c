// Interface of a JSON-RPC form. A form defines the methods that a client may call, and how results
// and pushes are written. The extended form is in this folder. The caller passes in the plain form,
// for clients that send no `protocol` in connect, so that this folder does not depend on `compat/`.

import type { ErrorCode } from "../../broker/errors.ts";
import type { Frames, Operation, Push, Ref, Reply, RequestLimits } from "../protocol.ts";
import type { Params } from "./params.ts";

export interface MethodInput {
  readonly params: Params;
  readonly ref: Ref;
  readonly limits: RequestLimits;
}

export interface Method {
  /** True if the method needs no id. A request without an id has no response. */
  readonly isNotification?: boolean;
  read(request: MethodInput): Operation | undefined;
}

/** Facts about a request that its response needs. */
export interface RequestFacts {
  readonly method: string;
  /** The value that `View.remember` returned for the request. */
  readonly remembered: unknown;
}

export interface View {
  /** Name of the wire format. Sessions with the same wire format share encoded frames. */
  readonly format: string;
  /** True if clients acknowledge messages and expect unacknowledged messages to be sent again. */
  readonly acknowledges: boolean;
  readonly methods: ReadonlyMap<string, Method>;
  /**
   * Id of an error response to a request without a valid id. `undefined` if the response has no id.
   */
  readonly unknownId: string | undefined;
  /** Returns the part of the request's params that its response repeats. */
  remember(operation: Operation, params: Params): unknown;
  /** Returns true if the error is reported in a result, false if it is in an error response. */
  isResult(code: ErrorCode, method: string): boolean;
  /** Returns the `result` of a response, or `undefined` if the form has no response for `reply`. */
  result(reply: Reply, request: RequestFacts): object | undefined;
  encode(push: Push): Frames;
}

export type ErrorNumber = (code: ErrorCode) => number;
