// Hooks for the API, the data and the route of a page. While the page is hidden, its data is not
// reloaded periodically.

import { createContext } from "preact";
import { useCallback, useContext, useEffect, useRef, useState } from "preact/hooks";
import type { Api } from "./api.ts";

const ApiContext = createContext<Api | undefined>(undefined);
export const ApiProvider = ApiContext.Provider;

export function useApi(): Api {
  const api = useContext(ApiContext);
  if (api === undefined) throw new Error("the component is outside of the ApiProvider");
  return api;
}

export interface Loaded<Data> {
  readonly data: Data | undefined;
  readonly error: Error | undefined;
  readonly isLoading: boolean;
  reload(): void;
}

/**
 * Loads data when `key` changes, and every `everyMs` milliseconds while the page is visible. If
 * `everyMs` is 0, data is not reloaded periodically. A periodic reload is skipped while a call is
 * in progress, because a new call would discard a slow reply. Returns the previous data during a
 * reload, and ignores the replies to outdated calls.
 */
export function useLoaded<Data>(key: string, load: () => Promise<Data>, everyMs = 0): Loaded<Data> {
  const [state, setState] = useState<Omit<Loaded<Data>, "reload"> & { readonly key: string }>({
    ...{ key, data: undefined, error: undefined, isLoading: true },
  });
  const turn = useRef(0);
  const isRunning = useRef(false);
  const latest = useRef({ key, load });
  latest.current = { key, load };

  const run = useCallback(async () => {
    turn.current += 1;
    const own = turn.current;
    // A call to `reload` may come from a render with an earlier key.
    const { key, load } = latest.current;
    isRunning.current = true;
    setState((old) => ({ ...old, isLoading: true }));
    try {
      const data = await load();
      if (own === turn.current) setState({ key, data, error: undefined, isLoading: false });
    } catch (error) {
      if (own === turn.current)
        setState((old) => ({
          key,
          data: old.key === key ? old.data : undefined,
          error: error as Error,
          isLoading: false,
        }));
    } finally {
      if (own === turn.current) isRunning.current = false;
    }
  }, []);

  // This effect makes a new call when `key` changes.
  useEffect(() => {
    void run();
    if (everyMs === 0) return;
    const stop = whileVisible(() => {
      if (!isRunning.current) void run();
    }, everyMs);
    return () => {
      turn.current += 1;
      stop();
    };
  }, [run, key, everyMs]);

  const isCurrent = state.key === key;
  return {
    data: isCurrent ? state.data : undefined,
    error: isCurrent ? state.error : undefined,
    isLoading: state.isLoading || !isCurrent,
    reload: () => void run(),
  };
}

/** Calls `act` every `everyMs` ms while the page is visible, and when the page is shown again. */
export function whileVisible(act: () => void, everyMs: number): () => void {
  const tick = () => {
    if (!document.hidden) act();
  };
  const timer = setInterval(tick, everyMs);
  document.addEventListener("visibilitychange", tick);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", tick);
  };
}

/** Returns the page and the parameters in the URL's fragment. */
export function useRoute(): Route {
  const [route, setRoute] = useState(readRoute);
  useEffect(() => {
    const change = () => setRoute(readRoute());
    addEventListener("hashchange", change);
    change(); // the URL may have changed before the effect ran
    return () => removeEventListener("hashchange", change);
  }, []);
  return route;
}

export interface Route {
  readonly page: string;
  readonly parameters: Readonly<Record<string, string>>;
}

function readRoute(): Route {
  const [page = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: page || "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Returns a link to a console page. */
export function linkTo(page: string, parameters: Readonly<Record<string, string>> = {}): string {
  const query = new URLSearchParams(parameters).toString();
  return `#/${page}${query === "" ? "" : `?${query}`}`;
}

export function goTo(page: string, parameters: Readonly<Record<string, string>> = {}): void {
  location.hash = linkTo(page, parameters);
}
