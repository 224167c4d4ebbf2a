#!/usr/bin/env perl
# SPDX-License-Identifier: BSD-3-Clause
#
# What vfio-bind.sh and vfio-unbind.sh ask that a shell can't: exclusive opens, and the device
# numbers behind the files that processes have open or mapped. Writes nothing anywhere.
#
#   holders.pl PROC [ASK]...
#     claim PATH         open the block device with O_EXCL and keep it open. The kernel refuses this
#                        while a file system, swap, a RAID or a volume holds it or a partition of it,
#                        and refuses all of those while this program holds it
#     try PATH           open the device and close it: a VFIO group can be open only once
#     b|c MAJ:MIN NAME   find the processes that hold this block or character device
#     f PATH NAME        find the processes that hold this file
#
# It prints a line for each finding: "busy PATH: REASON" for what could not be opened, "held NAME is
# open in process PID (COMM)", and "denied WHAT: REASON" for what could not be looked at. Then it
# prints "end" and keeps the claims until it is killed or its parent has ended.
#
# It is Perl because every Debian and Ubuntu system has perl-base, and it passes open(2) the flags
# that it is given. No shell does, and the standard tools that open a device exclusively are those
# that then write to it.
use strict;
use warnings;
use Errno;
use Fcntl qw(O_RDONLY O_RDWR O_EXCL O_NONBLOCK S_ISBLK S_ISCHR);

$| = 1;
my $parent = getppid;
my $proc = shift or die "usage: holders.pl PROC [ASK]...\n";
my %wanted; # "b|c DEVICE-NUMBER" or "f DEVICE:INODE" to a name
my @claims;

# A device number as stat(2) gives it, of "MAJ:MIN" as sysfs writes it.
sub device_number {
    my ($major, $minor) = $_[0] =~ /^(\d+):(\d+)$/ or die "holders.pl: \"$_[0]\" is no MAJ:MIN\n";
    return ($minor & 0xff) | ($major & 0xfff) << 8 | ($minor & ~0xff) << 12 |
        ($major & ~0xfff) << 32;
}

while (my $ask = shift) {
    if ($ask eq "claim") {
        my $path = shift;
        sysopen(my $claim, $path, O_RDONLY | O_EXCL | O_NONBLOCK) or print "busy $path: $!\n";
        push @claims, $claim;
    } elsif ($ask eq "try") {
        my $path = shift;
        sysopen(my $file, $path, O_RDWR | O_NONBLOCK) or print "busy $path: $!\n";
    } elsif ($ask eq "f") {
        my ($path, $name) = splice @ARGV, 0, 2;
        my ($dev, $ino) = stat $path or next;
        $wanted{"f $dev:$ino"} = $name;
    } elsif ($ask eq "b" || $ask eq "c") {
        my ($number, $name) = splice @ARGV, 0, 2;
        $wanted{"$ask " . device_number($number)} = $name;
    } else {
        die "holders.pl: what is \"$ask\"?\n";
    }
}

# The processes that have something open or mapped that was asked for, one sentence each, and how
# many processes could not be looked at. A process that ends meanwhile holds nothing.
sub find_holders {
    my (%found, $denied);
    opendir(my $processes, $proc) or die "holders.pl: $proc: $!\n";
    for my $pid (grep { /^\d+$/ && $_ != $$ } readdir $processes) {
        my $refused = 0;
        for my $folder ("$proc/$pid/fd", "$proc/$pid/map_files") {
            opendir(my $files, $folder) or ($refused ||= was_denied(), next);
            for my $file (grep { !/^\.\.?$/ } readdir $files) {
                my ($dev, $ino, $mode, $rdev) = (stat "$folder/$file")[0, 1, 2, 6]
                    or ($refused ||= was_denied(), next);
                my $type = S_ISBLK($mode) ? "b" : S_ISCHR($mode) ? "c" : "f";
                my $name = $wanted{$type eq "f" ? "f $dev:$ino" : "$type $rdev"} // next;
                $found{"$name is open in process $pid (" . name_of_process($pid) . ")"} = 1;
            }
        }
        $denied++ if $refused;
    }
    return (\%found, $denied);
}

sub was_denied { return $!{EACCES} || $!{EPERM} }

sub name_of_process {
    my ($pid) = @_;
    open(my $in, "<", "$proc/$pid/comm") or return "?";
    chomp(my $name = <$in> // "?");
    return $name;
}

my ($found, $denied) = find_holders();
if (%$found) {
    # udev and monitors open a device for a moment: only what is found twice counts.
    select undef, undef, undef, 0.5;
    my ($again) = find_holders();
    print "held $_\n" for sort grep { $again->{$_} } keys %$found;
}
print "denied the open files of $denied processes: Permission denied\n" if $denied;
print "end\n";
sleep 1 while getppid == $parent;
