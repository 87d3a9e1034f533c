// A server's routes: finds the handler for a method and path. The pattern `/*` matches all requests
// that match no other pattern.

import type { DriverHandler } from "../driver.ts";
import { isVariable, paramsOf } from "../path-pattern.ts";

interface Pattern {
  readonly segments: readonly string[];
  readonly handler: DriverHandler;
}

interface Match {
  readonly handler: DriverHandler;
  readonly params: readonly string[];
}

const NO_PARAMS: readonly string[] = [];

export class Routes {
  readonly #fixed = new Map<string, Match>();
  readonly #patterns = new Map<string, Pattern[]>();
  #fallback: Match | undefined;

  add(method: string, pattern: string, handler: DriverHandler): void {
    if (!isVariable(pattern)) {
      this.#fixed.set(`${method} ${pattern}`, { handler, params: NO_PARAMS });
      return;
    }
    const patterns = this.#patterns.get(method) ?? [];
    patterns.push({ segments: pattern.split("/"), handler });
    this.#patterns.set(method, patterns);
  }

  setFallback(handler: DriverHandler): void {
    this.#fallback = { handler, params: NO_PARAMS };
  }

  find(method: string, path: string): Match | undefined {
    return this.#fixed.get(`${method} ${path}`) ?? this.#findPattern(method, path);
  }

  #findPattern(method: string, path: string): Match | undefined {
    const patterns = this.#patterns.get(method);
    if (patterns === undefined) return this.#fallback;
    const segments = path.split("/");
    for (const pattern of patterns) {
      const params = paramsOf(pattern.segments, segments);
      if (params !== undefined) return { handler: pattern.handler, params };
    }
    return this.#fallback;
  }
}
