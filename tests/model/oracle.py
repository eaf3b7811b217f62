"""What fs/SEMANTICS.md promises, as a model of a few dozen lines: drafts and versions in dictionaries, and for each call the errors it
may answer. Knows nothing of how weightfs works."""

import copy
import errno
import itertools
import posixpath

OK = None
TEMPORARY = (".t", ".u", "x.tmp")


def is_temporary(name):
    return name in TEMPORARY


class Refused(Exception):
    """The call fails with one of these errno values, and changes nothing."""

    def __init__(self, *codes):
        super().__init__(codes)
        self.codes = codes


class Tree:
    """A draft's directory. A path is ("dir",), ("link", target) or ("file", inode); inodes are {"data", "x"}, shared by hard links."""

    def __init__(self):
        self.nodes, self.inodes, self.numbers = {}, {}, itertools.count()

    def parent_is_there(self, path):
        parent = posixpath.dirname(path)
        if not parent:
            return
        node = self.nodes.get(parent)
        if node is None:
            raise Refused(errno.ENOENT, errno.ENOTDIR)
        if node[0] == "link":
            raise Refused(errno.ENOENT)  # all lead nowhere
        if node[0] != "dir":
            raise Refused(errno.ENOTDIR)

    def children(self, path):
        return [other for other in self.nodes if other.startswith(path + "/")]

    def node(self, path):
        self.parent_is_there(path)
        if path not in self.nodes:
            raise Refused(errno.ENOENT)
        return self.nodes[path]

    def pair(self, old, new):
        """The node of `old`, where `new` has a parent. Which of two mistakes is answered is the kernel's business."""
        codes, node = [], None
        for look in (lambda: self.node(old), lambda: self.parent_is_there(new)):
            try:
                node = look() or node
            except Refused as refused:
                codes += refused.codes
        if codes:
            raise Refused(*codes)
        return node

    def data(self, path, create):
        self.parent_is_there(path)
        if path not in self.nodes:
            if not create:
                raise Refused(errno.ENOENT)
            number = next(self.numbers)
            self.inodes[number] = {"data": b"", "x": False}
            self.nodes[path] = ("file", number)
        kind, *rest = self.nodes[path]
        if kind == "dir":
            raise Refused(errno.EISDIR)
        if kind == "link":
            raise Refused(errno.ELOOP)  # O_NOFOLLOW
        return self.inodes[rest[0]]

    def new_name(self, path):
        self.parent_is_there(path)
        if path in self.nodes:
            raise Refused(errno.EEXIST)

    def drop(self, path):
        for other in self.children(path) + [path]:
            del self.nodes[other]

    def flat(self):
        """{path: None of a directory, target of a link (str), (bytes, executable) of a file}"""
        out = {}
        for path, (kind, *rest) in self.nodes.items():
            if kind == "dir":
                out[path] = None
            elif kind == "link":
                out[path] = rest[0]
            else:
                inode = self.inodes[rest[0]]
                out[path] = (inode["data"], inode["x"])
        return out


class World:
    """Versions are everyone's, drafts a host's. Each method is one call: it changes the model or raises Refused."""

    def __init__(self, hosts):
        self.live = {}  # {model: {name: flat tree}}, in the order of commits
        self.drafts = [{} for _ in range(hosts)]  # {(model, name): Tree}
        self.failed = [set() for _ in range(hosts)]  # drafts whose last commit lost against another's

    def versions(self, model):
        return self.live.get(model, {})

    def shown(self, host, model):
        """What `ls MODEL` prints, but for `latest`."""
        return set(self.versions(model)) | {name for where, name in self.drafts[host] if where == model}

    def latest(self, model):
        return next(reversed(self.versions(model)), None)

    # The directories of versions and drafts

    def tree(self, host, model, name):
        if (model, name) in self.drafts[host]:
            return self.drafts[host][model, name]
        if name in self.versions(model):
            raise Refused(errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.EEXIST, errno.ELOOP)
        raise Refused(errno.ENOENT)

    def make_draft(self, host, model, name):
        if name == "latest":
            raise Refused(errno.EINVAL, errno.EEXIST)
        if name in self.shown(host, model):
            raise Refused(errno.EEXIST)
        self.drafts[host][model, name] = Tree()

    def remove_draft(self, host, model, name):
        if (model, name) not in self.drafts[host]:
            raise Refused(errno.EROFS if name in self.versions(model) else errno.ENOENT)
        if self.drafts[host][model, name].nodes:
            raise Refused(errno.ENOTEMPTY)
        del self.drafts[host][model, name]
        self.failed[host].discard((model, name))

    def rename_draft(self, host, model, old, new):
        """Returns whether this publishes."""
        if old == new and old in self.shown(host, model):
            return False  # the kernel's answer
        if (model, old) not in self.drafts[host]:
            raise Refused(errno.EROFS if old in self.versions(model) else errno.ENOENT)
        target = self.drafts[host].get((model, new))
        if target is None and new in self.versions(model):
            raise Refused(errno.EEXIST)
        if target is not None and target.nodes:
            raise Refused(errno.ENOTEMPTY, errno.EEXIST)
        self.drafts[host][model, new] = self.drafts[host].pop((model, old))
        publishes = not is_temporary(new) and (is_temporary(old) or (model, old) in self.failed[host])
        self.failed[host].discard((model, new))
        if (model, old) in self.failed[host]:
            self.failed[host].discard((model, old))
        return publishes and self.publish(host, model, new)

    def publish(self, host, model, name):
        """The draft becomes a version; False where another host's has the name: it stays a draft."""
        if name in self.versions(model):
            self.failed[host].add((model, name))
            return False
        flat = self.drafts[host].pop((model, name)).flat()
        self.failed[host].discard((model, name))
        self.live.setdefault(model, {})[name] = flat
        return True

    def commit(self, host, model, name):
        """Whether `weightfs commit` succeeds."""
        if (model, name) not in self.drafts[host]:
            return name in self.versions(model)
        return not is_temporary(name) and self.publish(host, model, name)

    def remove_version(self, model, name):
        if name not in self.versions(model):
            return False
        del self.live[model][name]
        return True

    # Inside

    def write(self, host, model, name, path, offset, data, truncate):
        inode = self.tree(host, model, name).data(path, create=True)
        old = b"" if truncate else inode["data"]
        inode["data"] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data):]

    def truncate(self, host, model, name, path, size):
        inode = self.tree(host, model, name).data(path, create=False)
        inode["data"] = inode["data"][:size].ljust(size, b"\0")

    def chmod(self, host, model, name, path, executable):
        self.tree(host, model, name).data(path, create=False)["x"] = executable

    def unlink(self, host, model, name, path):
        tree = self.tree(host, model, name)
        if tree.node(path)[0] == "dir":
            raise Refused(errno.EISDIR)
        tree.drop(path)

    def mkdir(self, host, model, name, path):
        tree = self.tree(host, model, name)
        tree.new_name(path)
        tree.nodes[path] = ("dir",)

    def rmdir(self, host, model, name, path):
        tree = self.tree(host, model, name)
        if tree.node(path)[0] != "dir":
            raise Refused(errno.ENOTDIR)
        if tree.children(path):
            raise Refused(errno.ENOTEMPTY)
        tree.drop(path)

    def symlink(self, host, model, name, path, target):
        tree = self.tree(host, model, name)
        tree.new_name(path)
        tree.nodes[path] = ("link", target)

    def link(self, host, model, name, old, new):
        tree = self.tree(host, model, name)
        if tree.pair(old, new)[0] == "dir":
            raise Refused(errno.EPERM, errno.EEXIST)
        tree.new_name(new)
        tree.nodes[new] = tree.nodes[old]

    def rename(self, host, model, name, old, new):
        tree = self.tree(host, model, name)
        source = tree.pair(old, new)
        if (new + "/").startswith(old + "/") and new != old:
            raise Refused(errno.EINVAL)
        target = tree.nodes.get(new)
        if target is not None and new != old:
            if old.startswith(new + "/"):
                raise Refused(errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR)
            if source[0] == "dir" and target[0] != "dir":
                raise Refused(errno.ENOTDIR)
            if source[0] != "dir" and target[0] == "dir":
                raise Refused(errno.EISDIR, errno.EEXIST)
            if target[0] == "dir" and tree.children(new):
                raise Refused(errno.ENOTEMPTY, errno.EEXIST)
            if source == target and source[0] == "file":
                return  # two names of one file: nothing happens
        moved = {new + path[len(old):]: tree.nodes[path] for path in tree.children(old) + [old]}
        tree.drop(old)
        if new in tree.nodes:
            tree.drop(new)
        tree.nodes.update(moved)

    def shown_tree(self, host, model, name):
        draft = self.drafts[host].get((model, name))
        return copy.deepcopy(draft.flat() if draft is not None else self.versions(model)[name])
